"""Actions that are not allowed: the mask is a part of the observation, so it is there when a step is scored again."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from grpolib.policies.distributions import num_outputs
from grpolib.policies.recurrent import check_memoryless
from grpolib.policies.spaces import choices

OBSERVATION, MASK = "observation", "action_mask"
"""The parts of a masked observation."""


class MaskInObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Brings a mask that stands in `info` into the observation: Dict(observation=..., action_mask=...).

    Args:
        env: Its infos of reset and step hold the mask: one number for each action, 0 where it is not allowed; for
            MultiDiscrete one for each value of each number.
        name: Of the mask in the info.

    Raises:
        ValueError: Neither Discrete nor MultiDiscrete, or an info without such a mask.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str = MASK) -> None:
        super().__init__(env)
        _check_maskable(env.action_space)
        self._size, self._name = num_outputs(env.action_space), name
        self.observation_space = Dict({OBSERVATION: env.observation_space, MASK: MultiBinary(self._size)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The observation with its mask, and the info as it is."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The observation with its mask, and all else as it is."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = np.asarray(info.get(self._name))
        if mask.shape != (self._size,):
            raise ValueError(
                f"{self.env} gave {info.get(self._name)!r} as info[{self._name!r}]: give {self._size} numbers, 0 for "
                "an action that is not allowed, in reset and in step"
            )
        return {OBSERVATION: observation, MASK: (mask != 0).astype(np.int8)}


class Masked(nn.Module):
    """A module's logits, with -inf for actions that are not allowed.

    Those are never drawn; log-probabilities and entropies are those of the allowed ones. Observations are
    Dict(observation=..., action_mask=...), as `MaskInObservation` makes them.

    Args:
        module: From `observation` to the logits of a Discrete or MultiDiscrete space.
        action_space: The space.

    Raises:
        TypeError: A `Recurrent` module.
        ValueError: Another space; or, when called, an observation in which no action is allowed.
    """

    def __init__(self, module: nn.Module, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        check_memoryless(module, "Masked", "write a Recurrent whose head reads the mask, or mask without a memory")
        _check_maskable(action_space)
        self.module = module
        self._counts = choices(action_space)

    def forward(self, observations: Mapping[str, Any]) -> Tensor:
        """Logits, [n, A]."""
        allowed: Tensor = observations[MASK] != 0
        if not (torch.compiler.is_compiling() or torch.compiler.is_exporting()):
            self._check_some_allowed(allowed)
        logits: Tensor = self.module(observations[OBSERVATION])
        return logits.masked_fill(~allowed, -torch.inf)

    def _check_some_allowed(self, allowed: Tensor) -> None:
        for number, of_number in enumerate(allowed.split(self._counts, dim=1)):
            stuck = ~of_number.any(1)
            if bool(stuck.any()):
                raise ValueError(
                    f"no action is allowed in observation {int(stuck.nonzero()[0])} of {len(allowed)} (number {number} "
                    "of the action): end the episode there, or allow an action that does nothing"
                )


def _check_maskable(space: gymnasium.Space[Any]) -> None:
    if not isinstance(space, Discrete | MultiDiscrete):
        raise ValueError(
            f"{space} has no logits to mask: use Discrete or MultiDiscrete, or return logits with -inf for what is not "
            "allowed from your own module"
        )
