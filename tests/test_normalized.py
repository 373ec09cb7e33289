"""Running statistics of observations: what they are, when they change, and that they travel."""

from functools import partial

import numpy as np
import pytest
import torch
from environments import Counting, Quitting, box
from gymnasium.spaces import Box, Dict, Discrete
from helpers import Gives, assert_same_parameters, parameters_of
from torch import nn

from grpolib import (
    K3,
    Critic,
    GRPOTrainer,
    MinibatchPlan,
    Normalized,
    PPOTrainer,
    ReferencePolicy,
    evaluate,
    load_policy,
    mlp,
    save_policy,
)
from grpolib.policies.normalized import RunningStatistics, taking_in

SPACE = Quitting.observation_space
SMALL = {"group_size": 4, "groups_per_step": 2, "plan": MinibatchPlan(epochs=1, size=8)}


def normalized(seed=0):
    return Normalized(mlp(2, 8, 2, seed=seed), SPACE)


class Watched(Quitting):
    """Counts far enough to be far from 0."""

    def observation(self):
        return 100.0 + 10.0 * super().observation()


def watch(sampler):
    """Keeps the batches that a sampler gives."""
    batches, sample = [], sampler.sample

    def kept(*arguments, **keywords):
        batches.append(sample(*arguments, **keywords))
        return batches[-1]

    sampler.sample = kept
    return batches


def test_statistics_are_those_of_all_steps():
    trainer = GRPOTrainer(normalized(), lambda: Watched(9), **SMALL)
    batches = watch(trainer.sampler)
    trainer.train(iterations=3)
    (statistics,) = trainer.policy.module.statistics
    rows = torch.cat([batch.inputs.observations for batch in batches]).double().numpy()
    assert statistics.count == len(rows)
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.squares / statistics.count, rows.var(0), rtol=1e-9)
    passed = statistics(torch.from_numpy(rows).float())
    np.testing.assert_allclose(passed.mean(0), np.zeros(2), atol=1e-4)
    np.testing.assert_allclose(passed.std(0, correction=0), np.ones(2), atol=1e-3)


def test_the_first_batch_is_seen_as_it_is():
    seen = []
    module = Gives(lambda rows: seen.append(rows) or torch.zeros(len(rows), 2, requires_grad=True))
    observations = torch.tensor([[3.0, 100.0], [4.0, -4.0]])
    Normalized(module, SPACE).eval()(observations)
    torch.testing.assert_close(seen[0], observations.clamp(-10, 10))


def test_one_function_for_all_log_probabilities_of_an_iteration():
    trainer = GRPOTrainer(normalized(), lambda: Watched(9), **{**SMALL, "plan": MinibatchPlan(epochs=1, size=None)})
    for _ in range(3):
        metrics = trainer.step()
        # A whole batch, one epoch: the policy is still the one that acted.
        assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
        assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-6)


def test_acting_and_evaluating_change_nothing():
    trainer = GRPOTrainer(normalized(), lambda: Watched(9), **SMALL)
    trainer.train(iterations=1)
    before = parameters_of(trainer.policy)
    trainer.evaluate(episodes=3)
    evaluate(trainer.policy, Counting, episodes=2)
    assert_same_parameters(before, parameters_of(trainer.policy))


def test_statistics_are_in_the_policy_s_file(tmp_path):
    trainer = GRPOTrainer(normalized(), lambda: Watched(9), **SMALL)
    trainer.train(iterations=2)
    save_policy(trainer.policy, tmp_path)
    other = normalized(seed=5)
    load_policy(other, tmp_path)
    assert_same_parameters(parameters_of(trainer.policy.module), parameters_of(other))
    observations = torch.full((3, 2), 120.0)
    assert torch.equal(other.eval()(observations), trainer.policy.module(observations))


def with_critic(start, seed):
    critic = Critic(Normalized(mlp(2, 8, 1, seed=seed), SPACE))
    return start(normalized(seed), lambda: Watched(9), num_envs=3, steps=6, critic=critic, plan=SMALL["plan"])


def test_a_run_goes_on_with_the_same_bits(tmp_path):
    unbroken, broken = (with_critic(PPOTrainer, seed=1) for _ in range(2))
    unbroken.train(iterations=3)
    broken.train(iterations=2)
    broken.save(tmp_path / "checkpoint")
    resumed = with_critic(partial(PPOTrainer.resume, tmp_path / "checkpoint"), seed=9)
    resumed.train(iterations=1)
    assert_same_parameters(parameters_of(unbroken.policy), parameters_of(resumed.policy))
    assert_same_parameters(parameters_of(unbroken.critic.module), parameters_of(resumed.critic.module))


def test_the_reference_has_the_statistics_of_its_refresh():
    reference = ReferencePolicy(refresh_every=1)
    trainer = GRPOTrainer(normalized(), lambda: Watched(9), loss=[K3(0.1)], reference=reference, **SMALL)
    trainer.train(iterations=2)
    assert_same_parameters(parameters_of(trainer.policy), parameters_of(trainer.reference.policy))


def test_images_and_whole_numbers_stay_as_they_are():
    space = Dict(camera=Box(0, 255, (4, 4), np.uint8), kind=Discrete(3), place=box(2))
    module = Normalized(nn.Identity(), space)
    observations = {
        "camera": torch.full((5, 4, 4), 200, dtype=torch.uint8),
        "kind": torch.eye(3)[torch.tensor([0, 1, 2, 0, 1])],
        "place": torch.arange(10.0).reshape(5, 2),
    }
    with taking_in([part for part in module.statistics if isinstance(part, RunningStatistics)]):
        passed = module(observations)
    assert torch.equal(passed["camera"], observations["camera"])
    assert torch.equal(passed["kind"], observations["kind"])
    # 0, 2, 4, 6, 8: mean 4, standard deviation sqrt(8).
    torch.testing.assert_close(passed["place"][:, 0], (torch.arange(5.0) * 2 - 4) / 8**0.5)


def test_any_split_of_the_rows_gives_the_same_statistics():
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) * 5 + 1e3
    whole, parts = RunningStatistics((3,)), RunningStatistics((3,))
    whole.take_in(rows)
    for part in rows.split([1, 40, 59]):
        parts.take_in(part)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-6, atol=1e-9)
