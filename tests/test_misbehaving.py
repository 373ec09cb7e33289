"""Environments that exit, grow and give huge observations; docs/reliability.md has the table of all kinds."""

import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from environments import Counting
from gymnasium.spaces import Box, Discrete
from helpers import assert_same_parameters, parameters_of
from torch import nn

from grpolib import Callback, GroupSampler, GRPOTrainer, StepSampler, WorkerError, as_policy, check_group_env, mlp

SEED = np.random.SeedSequence(0)


class Exits(Counting):
    """Asks Python to exit after `at` steps, with a code that says that all went well."""

    def __init__(self, at=2):
        super().__init__()
        self.at = at

    def observation(self):
        if self.time == self.at:
            sys.exit(0)
        return super().observation()


@pytest.mark.parametrize("sampler", [lambda env: GroupSampler(env, 2), lambda env: StepSampler(env, 2, 8)])
def test_an_environment_that_exits_is_an_error_with_its_place(sampler):
    with pytest.raises(RuntimeError, match=r"Exits, reset seed \d+, step 1 asked Python to exit \(0\)"):
        sampler(Exits).sample(as_policy(mlp(2, 2), Discrete(2)), 2, SEED)


def test_an_environment_that_exits_at_its_reset():
    with pytest.raises(RuntimeError, match=r"Exits.reset\(seed=0\) asked Python to exit \(0\)"):
        GroupSampler(lambda: Exits(at=0), 2)


def test_an_environment_that_exits_while_it_is_checked():
    with pytest.raises(RuntimeError, match=r"Exits, reset seed \d+ asked Python to exit \(0\)"):
        check_group_env(Exits)


@pytest.mark.slow
def test_an_environment_that_exits_in_a_worker_is_the_same_error():
    sampler = GroupSampler(Exits, 2, workers=1)
    with pytest.raises(WorkerError, match=r"RuntimeError: Exits, reset seed \d+, step 1 asked Python to exit \(0\)"):
        sampler.sample(as_policy(mlp(2, 2), Discrete(2)), 1, SEED)
    sampler.close()


class Grows(Counting):
    """Never gives back what an episode took, and observes how many episodes its process has seen."""

    kept: ClassVar = []

    def reset(self, *, seed=None, options=None):
        self.kept.append(bytearray(2**20))
        return super().reset(seed=seed, options=options)


class FreshWorkers(Callback):
    """Ends the workers after each iteration, as docs/reliability.md says."""

    def __init__(self):
        self.seen = []

    def on_iteration_end(self, trainer, metrics):
        self.seen.append(tuple(worker.process.pid for worker in trainer.sampler.engine._workers))
        trainer.sampler.close()


@pytest.mark.slow
def test_fresh_workers_take_the_memory_of_an_environment_that_grows_and_change_no_bit():
    def trained(**keywords):
        trainer = GRPOTrainer(mlp(2, 2), Grows, group_size=2, groups_per_step=2, seed=1, **keywords)
        trainer.train(iterations=3)
        return parameters_of(trainer.policy)

    fresh = FreshWorkers()
    assert_same_parameters(trained(workers=2, callbacks=[fresh]), trained(workers=2))
    assert len(set(sum(fresh.seen, ()))) == 6


class Huge(gymnasium.Env):
    """Observes eight megabytes, in an array that it uses again."""

    observation_space = Box(0, 255, (2**23,), np.uint8)
    action_space = Discrete(2)
    array = np.zeros(2**23, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.array[:] = 0
        return self.array, {}

    def step(self, action):
        self.time += 1
        self.array[:] = self.time
        return self.array, float(action), self.time == 3, False, {}


class FirstPixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, observations):
        return self.linear(observations[:, :2].float())


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_huge_observations_are_kept_as_they_came(workers):
    sampler = GroupSampler(Huge, 2, workers=workers)
    batch = sampler.sample(as_policy(FirstPixels(), Discrete(2)), 1, SEED)
    sampler.close()
    observations = batch.inputs.observations
    assert observations.element_size() * observations.nelement() == 6 * 2**23
    assert observations[:, [0, -1]].tolist() == [[time, time] for time in (0, 1, 2, 0, 1, 2)]
