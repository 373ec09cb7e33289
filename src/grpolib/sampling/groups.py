"""Groups of episodes that share a start."""

import warnings

import numpy as np

from grpolib.batch import GroupBatch, StepInputs, concatenate
from grpolib.policies import ActingPolicy
from grpolib.sampling.environments import TRAINING_SEEDS, EnvSource, environment_name, make_environments, time_limit
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import generator, one_torch_thread, rollout


class GroupSampler:
    """M groups of G complete episodes, each group from one reset seed.

    A reset seed plays the part of a prompt: all members of a group start from the same state, and differ by
    the actions that they sample. Members are plain environments of the sampler's own, each reset by the
    group's seed and never reset on its own (a second episode would not share the start). Only those whose
    episode is still running are stepped.

    Args:
        env: An id, a factory, or one factory per member.
        group_size: G, >= 2.

    Raises:
        ValueError: A group of one, or a space that is not supported.
        TypeError: `env` is not an id, a factory or a list of factories.
    """

    def __init__(self, env: EnvSource, group_size: int = 16) -> None:
        if group_size < 2:
            raise ValueError(f"group_size is {group_size}: a group needs >= 2 episodes to compare")
        self.source = env
        self.group_size = group_size
        self._environments = make_environments(env, group_size)
        self.observation_space = self._environments[0].observation_space
        self.action_space = self._environments[0].action_space
        self.name = environment_name(self._environments[0])
        self._starts_differ = False

    @property
    def max_length(self) -> int | None:
        """The environment's time limit in steps, if it has one."""
        return time_limit(self._environments[0])

    def sample(
        self, policy: ActingPolicy, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[StepInputs]:
        """Groups first_group, ..., first_group + num_groups - 1; see `Sampler.sample`.

        Raises:
            ValueError: num_groups < 1, or the environment gave something that is not finite.
        """
        if num_groups < 1:
            raise ValueError(f"num_groups is {num_groups}: sample at least one group")
        with one_torch_thread():
            groups = [self._group(policy, group_seed(seed, first_group + k)) for k in range(num_groups)]
        return concatenate(groups)

    def close(self) -> None:
        """Close the environments."""
        for environment in self._environments:
            environment.close()

    def _group(self, policy: ActingPolicy, seed: np.random.SeedSequence) -> GroupBatch[StepInputs]:
        reset_seed, actions = seed.spawn(2)
        start = int(np.random.default_rng(reset_seed).integers(TRAINING_SEEDS))
        group = rollout(self._environments, policy, [start] * self.group_size, generator(actions))
        self._check_starts(group)
        return group

    def _check_starts(self, group: GroupBatch[StepInputs]) -> None:
        starts = group.inputs.observations[group.offsets[:-1]]
        if self._starts_differ or bool((starts == starts[0]).all()):
            return
        self._starts_differ = True
        warnings.warn(
            f"{self.name} gave different first observations for equal reset seeds: members of a group do not "
            "share their start, so a group's baseline compares unlike episodes. Seed every source of randomness "
            "of the environment from reset(seed=...)",
            stacklevel=4,
        )
