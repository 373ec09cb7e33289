"""The contract of every space with every algorithm, in this process and in workers."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from environments import box
from gymnasium.spaces import Box, Discrete
from helpers import assert_same_parameters, parameters_of
from space_cases import ACTIONS, OBSERVATIONS, make, module
from torch import nn

from grpolib import (
    GroupSampler,
    GRPOTrainer,
    Masked,
    MinibatchPlan,
    Normalized,
    PPOTrainer,
    Recurrent,
    Squashed,
    StepSampler,
    as_policy,
    gru,
)
from grpolib.sampling.engines import make_engine

ALGORITHMS = ("grpo", "ppo")
WORKERS = (0, 2)


def pairs():
    """Rows in which every two of observation, algorithm and workers meet, and of action, algorithm and workers."""
    for number, action in enumerate(ACTIONS):
        for late in (0, 1):
            observation = list(OBSERVATIONS)[(number + 4 * late) % len(OBSERVATIONS)]
            yield observation, action, ALGORITHMS[late], WORKERS[(number + late) % 2]


@pytest.fixture(scope="module")
def pool():
    engine = make_engine(2)
    yield engine
    engine.close()


def trained(observation, action, algorithm, engine=None):
    env = partial(make, observation, action)
    by = "episode" if action in ("gru", "lstm") else "step"
    plan = MinibatchPlan(epochs=2, size=8 if by == "step" else 4, by=by)
    if algorithm == "grpo":
        make_trainer, sampler, pieces = GRPOTrainer, GroupSampler(env, group_size=2), {"groups_per_step": 3}
    else:
        make_trainer, sampler, pieces = PPOTrainer, StepSampler(env, num_envs=9, steps=3), {}
    if engine is not None:
        sampler.engine = engine
    torch.manual_seed(0)
    trainer = make_trainer(module(observation, action), sampler, plan=plan, seed=1, **pieces)
    trainer.train(iterations=2)
    return trainer


def assert_contract(observation, action, algorithm, engine):
    """Two iterations change the policy, and it gives the log-probabilities with which it acted."""
    trainer = trained(observation, action, algorithm, engine)
    before = parameters_of(module(observation, action))
    after = parameters_of(trainer.policy.module)
    assert any(not torch.equal(after[name], value) for name, value in before.items())
    batch = trainer.sampler.sample(trainer.policy, trainer.recipe.groups_per_step, np.random.SeedSequence(5))
    evaluation = trainer.policy.evaluate(batch.inputs)
    torch.testing.assert_close(
        (evaluation.log_probs - batch.log_probs).exp(), torch.ones(batch.num_steps), atol=1e-6, rtol=0
    )
    assert evaluation.entropy.isfinite().all()
    if engine is not None:
        assert_same_parameters(after, parameters_of(trained(observation, action, algorithm).policy.module))


@pytest.mark.parametrize(("observation", "action", "algorithm", "workers"), list(pairs()))
def test_every_pair_of_the_table(observation, action, algorithm, workers, pool):
    assert_contract(observation, action, algorithm, pool if workers else None)


@pytest.mark.product
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("observation", "action"), list(itertools.product(OBSERVATIONS, ACTIONS)))
def test_the_whole_table(observation, action, algorithm, workers, pool):
    assert_contract(observation, action, algorithm, pool if workers else None)


@pytest.mark.parametrize(
    ("wrap", "instead"),
    [
        (lambda module: Normalized(module, box(3)), "Normalized(encoder, observation_space)"),
        (lambda module: Squashed(module, box(2)), "Squashed(head, action_space)"),
        (lambda module: Masked(module, Discrete(3)), "without a memory"),
    ],
)
def test_a_wrapper_that_would_lose_a_state_says_where_it_belongs(wrap, instead):
    with pytest.raises(TypeError, match=r"around a Recurrent loses its state: ") as raised:
        wrap(gru(box(3), 4, width=4))
    assert instead in str(raised.value)


def test_there_they_keep_it():
    space, actions = box(3), Box(-1.0, 1.0, (2,), np.float32)
    encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    module = Recurrent(Normalized(encoder, space), nn.GRU(4, 4, batch_first=True), Squashed(nn.Linear(4, 4), actions))
    policy = as_policy(module, actions)
    action = policy.act(torch.zeros(5, 3), torch.Generator().manual_seed(0))
    assert action.state.shape == (5, 1, 4)
    assert bool((action.actions.abs() < 1).all())
