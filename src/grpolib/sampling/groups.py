"""Groups of episodes that share a start."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpolib.batch import GroupBatch, concatenate
from grpolib.functional._checks import check_whole
from grpolib.policies import ActingPolicy
from grpolib.sampling.bad_groups import BadGroups, Dropping, check_bad_groups, without_bad_groups
from grpolib.sampling.engines import Run, Workers, make_engine
from grpolib.sampling.environments import TRAINING_SEEDS, Env, EnvSource, describe_environments, make_environments
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import generator, rollout
from grpolib.trees import leaves, select


class GroupSampler:
    """M groups of G complete episodes, each group from one reset seed.

    A reset seed plays the part of a prompt: all members of a group start from the same state, and differ by
    the actions that they sample. Members are plain environments of the sampler's own, each reset by the
    group's seed and never reset on its own (a second episode would not share the start). Only those whose
    episode is still running are stepped.

    Args:
        env: An id, a factory, or one factory per member.
        group_size: G, >= 2.
        workers: Where groups run: 0 here, a number of processes, or "auto"; the batch has the same bits.
        bad_groups: "raise", or "drop" to leave out groups with a reward or observation that is not finite, and to
            count them as the metric `dropped_groups`. What an environment raises, and what breaks its spaces, is
            raised either way; so is what is not finite in an evaluation.

    Raises:
        ValueError: A group of one, another word for bad_groups, or a space that is not supported.
        TypeError: `env` is not an id, a factory or a list of factories.
    """

    def __init__(
        self, env: EnvSource, group_size: int = 16, *, workers: Workers = 0, bad_groups: BadGroups = "raise"
    ) -> None:
        check_whole(group_size=group_size)
        check_bad_groups(bad_groups)
        if group_size < 2:
            raise ValueError(f"group_size is {group_size}: a group needs >= 2 episodes to compare")
        self.engine = make_engine(workers)
        self.source = env
        self.group_size = group_size
        self.bad_groups = bad_groups
        description = describe_environments(env, group_size)
        self.observation_space = description.observation_space
        self.action_space = description.action_space
        self.name = description.name
        self.max_length = description.time_limit
        self._stage = GroupStage(env, group_size, bad_groups)
        self._starts_differ = not description.resets_repeat
        if self._starts_differ:
            self._warn_of_starts()

    def sample(
        self, policy: ActingPolicy, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[Any]:
        """Groups first_group, ..., first_group + num_groups - 1; see `Sampler.sample`.

        Raises:
            ValueError: num_groups < 1, or the environment gave something that is not finite (in all of the groups,
                where such groups are dropped).
            WorkerError: A worker process raised, died or hangs.
        """
        check_whole(num_groups=num_groups)
        if num_groups < 1:
            raise ValueError(f"num_groups is {num_groups}: sample at least one group")
        jobs = [GroupJob.of(group_seed(seed, first_group + k)) for k in range(num_groups)]
        groups = self.engine.map(self._stage, policy, jobs)
        batch = concatenate(groups) if self.bad_groups == "raise" else without_bad_groups(groups)
        self._check_starts(batch)
        return batch

    def close(self) -> None:
        """Close the environments and end the workers."""
        self.engine.close()

    def _check_starts(self, batch: GroupBatch[Any]) -> None:
        if self._starts_differ:
            return
        starts = select(batch.inputs.observations, batch.offsets[:-1])
        first_of_group = torch.searchsorted(batch.group_ids, batch.group_ids)
        if any(bool((part != part[first_of_group]).any()) for part in leaves(starts)):
            self._starts_differ = True
            self._warn_of_starts()

    def _warn_of_starts(self) -> None:
        warnings.warn(
            f"{self.name} gave different first observations for equal reset seeds: members of a group do not share "
            "their start, so a group's baseline compares unlike episodes. Draw everything from self.np_random, let "
            "nothing survive reset; check_group_env says more",
            stacklevel=4,
        )


@dataclass(frozen=True)
class GroupJob:
    """One group: where its episodes start, and the seed of its actions."""

    reset_seed: int
    actions: np.random.SeedSequence

    @classmethod
    def of(cls, seed: np.random.SeedSequence) -> "GroupJob":
        """The group that `seed` names; `seed` is not changed."""
        start, actions = group_seed(seed, 0), group_seed(seed, 1)
        return cls(int(np.random.default_rng(start).integers(TRAINING_SEEDS)), actions)


@dataclass(frozen=True, eq=False)
class GroupStage:
    """G environments, and a group's episodes in them."""

    source: EnvSource
    group_size: int
    bad_groups: BadGroups

    def build(self) -> Run:
        """Make the environments."""
        run = GroupRun(make_environments(self.source, self.group_size))
        return run if self.bad_groups == "raise" else Dropping(run)


@dataclass(frozen=True)
class GroupRun:
    """Runs the episodes of a group."""

    environments: list[Env]

    def __call__(self, policy: ActingPolicy, job: GroupJob) -> GroupBatch[Any]:
        """One complete episode in each environment."""
        seeds = [job.reset_seed] * len(self.environments)
        return rollout(self.environments, policy, seeds, generator(job.actions))

    def close(self) -> None:
        """Close the environments."""
        for environment in self.environments:
            environment.close()
