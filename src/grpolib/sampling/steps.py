"""A fixed number of steps from each of a few environments, for estimators with a critic."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.batch import GroupBatch, StepInputs, concatenate
from grpolib.policies import ActingPolicy
from grpolib.policies.spaces import as_tensor, environment_actions, observation_dtype
from grpolib.sampling.environments import (
    BLOCK,
    TRAINING_SEEDS,
    Env,
    EnvSource,
    environment_name,
    make_environments,
    time_limit,
)
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import (
    checked_observation,
    checked_step,
    device_of,
    generator,
    one_torch_thread,
)

RECENT = 100
"""Finished episodes over which the training return is averaged."""


class StepSampler:
    """`steps` steps from each of `num_envs` environments; episodes are carried over to the next sample.

    A segment ends where its episode ends or the rollout does; `final_inputs` holds the true observation after
    its last step, and `terminated` is False where a critic has to bootstrap from it. Every segment is a group of
    its own: estimators that compare the members of a group raise. `metrics` holds the returns and lengths of
    the last 100 finished episodes.

    Args:
        env: An id, a factory, or one factory per environment.
        num_envs: K, >= 1.
        steps: Per environment and sample, >= 1.
    """

    def __init__(self, env: EnvSource, num_envs: int = 16, steps: int = 1024) -> None:
        if num_envs < 1 or steps < 1:
            raise ValueError(f"num_envs={num_envs} and steps={steps} must be >= 1")
        self.source = env
        self.num_envs = num_envs
        self.steps = steps
        environments = make_environments(env, num_envs)
        self.observation_space = environments[0].observation_space
        self.action_space = environments[0].action_space
        self.name = environment_name(environments[0])
        self.max_length = time_limit(environments[0])
        self._blocks = [_Block(environments[k : k + BLOCK]) for k in range(0, num_envs, BLOCK)]
        self._returns: deque[float] = deque(maxlen=RECENT)
        self._lengths: deque[int] = deque(maxlen=RECENT)

    def sample(
        self, policy: ActingPolicy, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[StepInputs]:
        """num_envs x steps steps; a block of environments takes the place of a group. See `Sampler.sample`.

        Raises:
            ValueError: num_groups is not num_envs, or the environment gave something that is not finite.
        """
        if num_groups != self.num_envs:
            raise ValueError(
                f"num_groups is {num_groups}, this sampler has {self.num_envs} environments: set "
                f"groups_per_step={self.num_envs}"
            )
        with one_torch_thread():
            segments = concatenate(
                [
                    block.run(policy, self.steps, group_seed(seed, first_group + k))
                    for k, block in enumerate(self._blocks)
                ]
            )
        for block in self._blocks:
            self._returns.extend(block.finished_returns)
            self._lengths.extend(block.finished_lengths)
        metrics = {"returns": torch.tensor(self._returns), "lengths": torch.tensor(self._lengths)}
        return replace(segments, group_ids=torch.arange(segments.num_episodes), metrics=metrics)

    def close(self) -> None:
        """Close the environments."""
        for block in self._blocks:
            for environment in block.environments:
                environment.close()


class _End(NamedTuple):
    """Where a segment ends: its last step of the rollout, whether the episode terminated, what came after."""

    step: int
    terminated: bool
    observation: NDArray[Any]


class _Block:
    """Environments that share a policy call, a generator and, later, a worker."""

    def __init__(self, environments: Sequence[Env]) -> None:
        self.environments = environments
        space = environments[0].observation_space
        self._current = np.empty((len(environments), *(space.shape or ())), dtype=observation_dtype(space))
        self._times = np.zeros(len(environments), dtype=np.int64)
        self._totals = np.zeros(len(environments))
        self._seeds = [-1] * len(environments)
        self.finished_returns: list[float] = []
        self.finished_lengths: list[int] = []

    def run(self, policy: ActingPolicy, steps: int, seed: np.random.SeedSequence) -> GroupBatch[StepInputs]:
        """`steps` steps of each environment, as segments in the order of the environments."""
        resets, draws = seed.spawn(2)
        reset_rng, rng = np.random.default_rng(resets), generator(draws)
        self.finished_returns, self.finished_lengths = [], []
        for member, seed_of_episode in enumerate(self._seeds):
            if seed_of_episode < 0:
                self._reset(member, reset_rng)
        segments: list[list[_End]] = [[] for _ in self.environments]
        first_times = self._times.copy()
        observations, actions, log_probs, rewards = [], [], [], []
        for step in range(steps):
            observations.append(self._current.copy())
            action = policy.act(as_tensor(observations[-1], device_of(policy)), rng)
            actions.append(action.actions.cpu())
            log_probs.append(action.log_probs.cpu())
            rewards.append(self._step(action.actions, step, segments, reset_rng))
        for member, ends in enumerate(segments):
            if not ends or ends[-1].step < steps - 1:
                ends.append(_End(steps - 1, False, self._current[member].copy()))
        return _as_segments(observations, actions, log_probs, rewards, segments, first_times)

    def _step(
        self, actions: torch.Tensor, step: int, segments: list[list[_End]], reset_rng: np.random.Generator
    ) -> NDArray[np.float32]:
        rewards = np.empty(len(self.environments), dtype=np.float32)
        taken = environment_actions(actions, self.environments[0].action_space)
        for member, (environment, action) in enumerate(zip(self.environments, taken, strict=True)):
            self._current[member], rewards[member], terminated, truncated = checked_step(
                environment, action, self._seeds[member], int(self._times[member])
            )
            self._times[member] += 1
            self._totals[member] += rewards[member]
            if terminated or truncated:
                segments[member].append(_End(step, terminated, self._current[member].copy()))
                self.finished_returns.append(float(self._totals[member]))
                self.finished_lengths.append(int(self._times[member]))
                self._reset(member, reset_rng)
        return rewards

    def _reset(self, member: int, rng: np.random.Generator) -> None:
        seed = self._seeds[member] = int(rng.integers(TRAINING_SEEDS))
        observation, _ = self.environments[member].reset(seed=seed)
        self._current[member] = checked_observation(observation, self.environments[member], seed, "at reset")
        self._times[member], self._totals[member] = 0, 0.0


def _as_segments(
    observations: list[NDArray[Any]],
    actions: list[torch.Tensor],
    log_probs: list[torch.Tensor],
    rewards: list[NDArray[np.float32]],
    segments: list[list[_End]],
    first_times: NDArray[np.int64],
) -> GroupBatch[StepInputs]:
    """Rows that were collected step by step, sorted by environment and cut where episodes ended."""
    ends = [end for member in segments for end in member]
    lengths = [np.diff([-1, *(end.step for end in member)]) for member in segments]
    starts = [[first, *([0] * (len(member) - 1))] for first, member in zip(first_times, segments, strict=True)]
    return GroupBatch(
        inputs=StepInputs(_by_member(torch.from_numpy(np.stack(observations))), _by_member(torch.stack(actions))),
        log_probs=_by_member(torch.stack(log_probs)),
        rewards=_by_member(torch.from_numpy(np.stack(rewards))),
        lengths=torch.from_numpy(np.concatenate(lengths)),
        group_ids=torch.arange(len(ends)),
        terminated=torch.tensor([end.terminated for end in ends]),
        final_inputs=torch.from_numpy(np.stack([end.observation for end in ends])),
        first_timesteps=torch.from_numpy(np.concatenate(starts).astype(np.int64)),
    )


def _by_member(values: torch.Tensor) -> torch.Tensor:
    """[steps, K, ...] as rows, one environment after the other."""
    return values.transpose(0, 1).flatten(0, 1)
