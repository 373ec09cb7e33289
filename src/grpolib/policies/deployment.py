"""A trained policy where it is used: from observations to what `env.step` takes."""

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from grpolib.functional._checks import check_whole
from grpolib.policies.adapter import as_policy
from grpolib.policies.protocols import Policy
from grpolib.policies.spaces import (
    check_action_space,
    check_observation_space,
    environment_actions,
    observation_dtype,
)


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

    def __call__(self, observation: ArrayLike, *, deterministic: bool = True) -> Any:
        """The action of one observation as `env.step` takes it, or an array with one action per row of a batch.

        Args:
            observation: [...] as the observation space has it, or [n, ...].
            deterministic: The most probable action (the mean where there is no mode) instead of a sample.

        Raises:
            ValueError: Another shape.
        """
        action, _ = self.predict(observation, deterministic=deterministic)
        return action

    def predict(
        self,
        observation: ArrayLike,
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
            ValueError: Another shape; or some episodes of a recurrent policy begin while others go on.
        """
        observations, is_batch = self._batch_of(observation)
        self.policy.train(False)
        with torch.no_grad():
            action = self.policy.act(
                torch.from_numpy(observations).to(self._device),
                self._rng,
                state=_continued(state, episode_start),
                deterministic=deterministic,
            )
        actions = environment_actions(action.actions, self.action_space)
        return (np.asarray(actions) if is_batch else actions[0]), action.state

    def _batch_of(self, observation: ArrayLike) -> tuple[NDArray[Any], bool]:
        shape = self.observation_space.shape or ()
        observations = np.array(observation, dtype=observation_dtype(self.observation_space))
        if observations.shape == shape:
            return observations[None], False
        if observations.shape[1:] == shape and len(observations):
            return observations, True
        raise ValueError(
            f"got shape {observations.shape} for {self.observation_space}: give one observation, {shape}, or a batch, "
            f"{('n', *shape)}"
        )

    @property
    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self.policy.parameters()), torch.device("cpu"))


def _continued(state: Any, episode_start: ArrayLike | None) -> Any:
    starts = np.asarray(False if episode_start is None else episode_start)
    if state is None or starts.all():
        return None
    if starts.any():
        raise ValueError(f"episode_start is {starts.tolist()}: give a recurrent policy one environment, or restart all")
    return state
