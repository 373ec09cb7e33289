"""Groups whose environment gave numbers that are not finite: an error, or left out and counted."""

import logging
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from environments import Counting, Diverges, GivesObservation, GivesReward
from gymnasium.spaces import Discrete
from helpers import Constant

from grpolib import Callback, DynamicSampling, EvaluateEvery, GroupSampler, GRPOTrainer, as_policy, mlp
from grpolib.batch import select_groups
from grpolib.metrics import batch_metrics

SEED = np.random.SeedSequence(3, spawn_key=(1,))
GROUPS = 6


def coin():
    return as_policy(Constant(0.0, 0.0), Discrete(2))


def sampled(env, *, num_groups=GROUPS, policy=None, **options):
    sampler = GroupSampler(env, 3, **options)
    try:
        return sampler.sample(policy or coin(), num_groups, SEED)
    finally:
        sampler.close()


def infinite_reward():
    return Diverges(reward=-math.inf)


def not_finite_observation():
    return Diverges(reward=1.0, observed=math.inf)


def assert_same(first, second):
    for name in ("log_probs", "rewards", "lengths", "terminated", "final_inputs", "group_ids"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.inputs.observations, second.inputs.observations)
    assert torch.equal(first.inputs.actions, second.inputs.actions)


def good_groups(env):
    """The groups that the fault would not have hit, of an environment without it."""
    whole = sampled(env)
    contexts = whole.inputs.observations[whole.offsets[:-1], 0]
    return select_groups(whole, (contexts.view(GROUPS, 3)[:, 0] <= 0.5).nonzero().squeeze(1))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env", [Diverges, infinite_reward, not_finite_observation])
def test_the_other_groups_are_what_they_would_have_been(env, workers):
    expected = good_groups(lambda: Diverges(reward=1.0))
    assert 1 < expected.num_groups < GROUPS - 1
    batch = sampled(env, bad_groups="drop", workers=workers)
    assert batch.metrics["dropped_groups"].tolist() == [GROUPS - expected.num_groups]
    assert_same(batch, expected)


@pytest.mark.parametrize("env", [Diverges, infinite_reward, not_finite_observation])
def test_without_the_option_the_first_one_is_an_error(env):
    with pytest.raises(ValueError, match=r"Diverges, reset seed \d+, step 1 gave"):
        sampled(env)


def test_nothing_is_dropped_where_all_is_finite():
    batch = sampled(Counting, bad_groups="drop")
    assert_same(batch, sampled(Counting))
    assert batch.metrics["dropped_groups"].tolist() == [0.0]


def test_a_start_that_is_not_finite_drops_its_group():
    with pytest.raises(ValueError, match=r"all 2 groups had to be dropped, the first because .* step 0 gave a non-fin"):
        sampled(lambda: GivesObservation(np.array([math.nan, 0.0]), at=0), num_groups=2, bad_groups="drop")


def test_no_group_left_is_an_error_that_says_why():
    message = r"all 4 groups had to be dropped, the first because GivesReward, reset seed \d+, step 1 gave reward nan"
    with pytest.raises(ValueError, match=message):
        sampled(lambda: GivesReward(math.nan), num_groups=4, bad_groups="drop")


def test_each_dropped_group_is_a_message(caplog):
    with caplog.at_level(logging.WARNING, "grpolib"):
        batch = sampled(Diverges, bad_groups="drop")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == int(batch.metrics["dropped_groups"])
    assert all(re.match(r"a group was dropped: Diverges, reset seed \d+, step 1 gave reward nan", m) for m in messages)


class Odd(Counting):
    """Breaks the rules in one way: what no number of groups less would mend."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def reward(self, action):
        if self.rule == "raises":
            raise ArithmeticError("the simulator gave up")
        return "much" if self.rule == "word" else 1.0

    def observation(self):
        return np.zeros(3) if self.rule == "shape" and self.time == 2 else super().observation()


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        ("raises", ArithmeticError, "the simulator gave up"),
        ("word", ValueError, "reward 'much'"),
        ("shape", ValueError, r"an observation of shape \(3,\)"),
    ],
)
def test_what_breaks_the_rules_is_raised_either_way(rule, error, message):
    with pytest.raises(error, match=message):
        sampled(lambda: Odd(rule), bad_groups="drop")


def test_a_policy_that_diverged_is_raised_either_way():
    with pytest.raises(ValueError, match="gave log-probabilities"):
        sampled(Counting, policy=as_policy(Constant(math.nan, 0.0), Discrete(2)), bad_groups="drop")


class Keeps(Callback):
    def __init__(self):
        self.rows = []

    def on_iteration_end(self, trainer, metrics):
        self.rows.append(metrics)


def test_training_goes_on_and_the_table_has_the_count(tmp_path):
    sampler = GroupSampler(Diverges, 3, bad_groups="drop")
    keeps = Keeps()
    trainer = GRPOTrainer(
        mlp(2, 4, 2, seed=0),
        sampler,
        run_folder=tmp_path / "run",
        groups_per_step=GROUPS,
        callbacks=[EvaluateEvery(episodes=2, env=Counting), keeps],
    )
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    trainer.train(iterations=2)
    assert all(0 < row["dropped_groups"] < GROUPS for row in keeps.rows)
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.policy.parameters(), strict=True))
    assert all(bool(parameter.isfinite().all()) for parameter in trainer.policy.parameters())
    table = (tmp_path / "run" / "metrics.csv").read_text()
    assert "dropped_groups" in table.splitlines()[0]
    trainer.close()


def test_an_evaluation_drops_nothing():
    trainer = GRPOTrainer(mlp(2, 4, 2, seed=0), GroupSampler(Diverges, 2, bad_groups="drop"))
    with pytest.raises(ValueError, match=r"Diverges, reset seed \d+, step 1 gave reward nan"):
        trainer.evaluate(episodes=8)
    trainer.close()


def test_a_run_that_stopped_at_one_goes_on_without_it(tmp_path):
    stops = GRPOTrainer(mlp(2, 4, 2, seed=0), GroupSampler(Diverges, 3), groups_per_step=GROUPS)
    stops.save(tmp_path / "start")
    with pytest.raises(ValueError, match="gave reward nan"):
        stops.step()
    goes_on = GRPOTrainer.resume(
        tmp_path / "start",
        mlp(2, 4, 2, seed=0),
        GroupSampler(Diverges, 3, bad_groups="drop"),
        groups_per_step=GROUPS,
    )
    assert 0 < goes_on.step()["dropped_groups"] < GROUPS


def test_the_counts_of_several_ranks_are_summed():
    batch = replace(sampled(Counting), metrics={"dropped_groups": torch.tensor([2.0, 0.0, 3.0])})
    assert batch_metrics(batch)["dropped_groups"] == 5.0


def test_dynamic_sampling_wants_all_groups():
    with pytest.raises(ValueError, match=r"bad_groups='drop'.*set bad_groups='raise'"):
        DynamicSampling(GroupSampler(Counting, 2, bad_groups="drop"))
    DynamicSampling(GroupSampler(Counting, 2))


# Exceptions of an environment.


class Raises(Counting):
    """Raises after `at` steps."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def observation(self):
        if self.time == self.at:
            raise ArithmeticError("out of range")
        return super().observation()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_an_environment_s_exception_says_which_episode_and_step():
    sampler = GroupSampler(lambda: Raises(at=2), 2)
    with pytest.raises(ArithmeticError, match="out of range") as caught:
        sampler.sample(coin(), 1, SEED)
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"raised in Raises, reset seed \d+, step 1", note)
