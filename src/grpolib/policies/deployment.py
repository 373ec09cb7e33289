"""A trained policy where it is used: from observations to what `env.step` takes."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict, Tuple
from numpy.typing import ArrayLike
from torch import nn

from grpolib.functional._checks import check_whole
from grpolib.policies.adapter import as_policy
from grpolib.policies.protocols import Policy, RecurrentPolicy
from grpolib.policies.spaces import (
    as_tree,
    check_action_space,
    check_observation_space,
    environment_actions,
    observation_dtype,
    observation_parts,
)
from grpolib.trees import Tree, move, tree_map


class Deployed:
    """A policy outside of training: `deployed(observation)` gives the action of one observation, or of a batch.

    `predict` is what Stable-Baselines3 calls a model's, so its `evaluate_policy(deployed, env)` works, too. Dropout
    and the like are off.

    Args:
        policy: A policy, or any module that `as_policy` takes; used as it is, where it is, not copied.
        observation_space: Of one environment; what has one dimension more is a batch.
        action_space: Of one environment.
        seed: Of the actions that are sampled, >= 0.

    Raises:
        TypeError: `policy` is no `nn.Module`, or `seed` no whole number.
        ValueError: A space that is not supported.
    """

    def __init__(
        self,
        policy: Policy | nn.Module,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        seed: int = 0,
    ) -> None:
        check_observation_space(observation_space)
        check_action_space(action_space)
        check_whole(seed=seed)
        self.policy = as_policy(policy, action_space)
        self.observation_space, self.action_space = observation_space, action_space
        self._rng = torch.Generator().manual_seed(seed)

    def __call__(self, observation: Any, *, deterministic: bool = True) -> Any:
        """The action of one observation as `env.step` takes it, or an array with one action per row of a batch.

        The actions of a batch in a Dict or Tuple space are a list.

        Args:
            observation: [...] as the observation space has it, or [n, ...]; likewise each part of a nested one.
            deterministic: The most probable action (the mean where there is no mode) instead of a sample.

        Raises:
            ValueError: Another shape.
        """
        action, _ = self.predict(observation, deterministic=deterministic)
        return action

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Actions, and the state of a recurrent policy to give back at the next step; None for any other policy.

        Args:
            observation: See `__call__`.
            state: What the step before returned.
            episode_start: Whether episodes begin here, one flag or one a row; where all do, `state` is left out.
            deterministic: See `__call__`; Stable-Baselines3's own default is to sample.

        Raises:
            ValueError: Another shape; or some episodes begin while others go on, and the policy has a state but no
                `initial_state`.
        """
        observations, is_batch = self._batch_of(observation)
        self.policy.train(False)
        with torch.no_grad():
            action = self.policy.act(
                move(observations, self._device),
                self._rng,
                state=self._continued(state, episode_start),
                deterministic=deterministic,
            )
        actions = environment_actions(action.actions, self.action_space)
        if not is_batch:
            return actions[0], action.state
        is_nested = isinstance(self.action_space, Dict | Tuple)
        return (list(actions) if is_nested else np.asarray(actions)), action.state

    def _batch_of(self, observation: Any) -> tuple[Tree, bool]:
        parts = list(observation_parts(self.observation_space))
        given = [part.given(observation) for part in parts]
        shapes = [part.space.shape or () for part in parts]
        if all(array.shape == shape for array, shape in zip(given, shapes, strict=True)):
            given, is_batch = [array[None] for array in given], False
        elif len({len(array) if array.ndim else 0 for array in given} - {0}) == 1 and all(
            array.shape[1:] == shape for array, shape in zip(given, shapes, strict=True)
        ):
            is_batch = True
        else:
            found, wanted = ([a.shape for a in given], shapes) if len(parts) > 1 else (given[0].shape, shapes[0])
            raise ValueError(
                f"got shape {found} for {self.observation_space}: give one observation, {wanted}, or a batch, "
                f"{('n', *wanted)}"
            )
        rows = (
            np.stack([part.stored(np.asarray(row)) for row in array]).astype(observation_dtype(part.space))
            for part, array in zip(parts, given, strict=True)
        )
        return as_tree(self.observation_space, (torch.from_numpy(one) for one in rows)), is_batch

    def _continued(self, state: Any, episode_start: ArrayLike | None) -> Any:
        """The state, from the start again where an episode begins."""
        starts = np.asarray(False if episode_start is None else episode_start)
        if state is None or starts.all():
            return None
        if not starts.any():
            return state
        if not isinstance(self.policy, RecurrentPolicy):
            raise ValueError(
                f"episode_start is {starts.tolist()}: give a recurrent policy one environment, or restart all"
            )
        begins = torch.from_numpy(starts)
        return tree_map(partial(_chosen, begins), self.policy.initial_state(len(starts)), state)

    @property
    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self.policy.parameters()), torch.device("cpu"))


def _chosen(condition: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Rows of the one where the condition holds, else of the other."""
    return torch.where(condition.to(one.device).reshape(-1, *[1] * (one.ndim - 1)), one, other)
