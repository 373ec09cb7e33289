import dataclasses
import json
import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from environments import Bandit, Counting, GivesReward, Lifting, Quitting, Sent
from helpers import Constant, Gives, assert_same_parameters, global_generators_untouched, parameters_of
from torch import nn

from grpolib import EvaluateEvery, EvaluationReport, GRPOTrainer, Normalized, evaluate, mlp
from grpolib.evaluation import CHOOSING_SEEDS, REPORTED_SEEDS, EpisodeStatistics


def statistics(returns, lengths=None, threshold=None):
    returns = torch.tensor(returns)
    lengths = torch.ones(len(returns), dtype=torch.long) if lengths is None else torch.tensor(lengths)
    return EpisodeStatistics(returns, lengths, threshold)


def sent_environments(env, **keywords):
    """A report, and the environments with what they were given."""
    made = []

    def factory():
        made.append(Sent(env()))
        return made[-1]

    return evaluate(Constant(0.0, 0.0), factory, **keywords), made


def seeds_of_episodes(environments):
    """Of those that were played, not only looked at."""
    played = [zip(environment.seeds, environment.episodes, strict=True) for environment in environments]
    return [seed for pairs in played for seed, actions in pairs if actions]


# Which episodes.


def test_both_ways_start_from_the_same_consecutive_seeds():
    report, made = sent_environments(Counting, episodes=11, first_seed=500)
    assert sorted(seeds_of_episodes(made)) == sorted(2 * list(range(500, 511)))
    assert len(report.argmax.returns) == len(report.sampled.returns) == 11


def test_episodes_come_in_the_order_of_their_seeds():
    def first_context(rows):
        return torch.stack([rows[:, 0] * 100, torch.zeros(len(rows))], dim=1)

    class Context(Counting):
        def reward(self, action):
            return self.context

    expected = []
    for seed in range(40, 51):
        environment = Context(1)
        environment.reset(seed=seed)
        expected.append(environment.context)
    report = evaluate(Gives(first_context), lambda: Context(1), episodes=11, first_seed=40)
    assert report.argmax.returns.tolist() == pytest.approx(expected)
    assert report.sampled.returns.tolist() == pytest.approx(expected)


def test_the_default_seeds_are_the_reported_ones_and_choosing_has_its_own():
    _, made = sent_environments(Counting, episodes=2)
    assert set(seeds_of_episodes(made)) == {REPORTED_SEEDS, REPORTED_SEEDS + 1}
    assert (REPORTED_SEEDS, CHOOSING_SEEDS) == (1_000_000_000, 2_000_000_000)


def test_fifty_episodes_by_default():
    report, made = sent_environments(lambda: Counting(1))
    assert len(report.argmax.returns) == len(report.sampled.returns) == 50
    assert len(seeds_of_episodes(made)) == 100


@pytest.mark.parametrize("episodes", [1, 3, 8, 9])
def test_as_many_episodes_as_asked_for(episodes):
    report, made = sent_environments(Counting, episodes=episodes)
    assert report.argmax.lengths.tolist() == [3] * episodes
    assert len(seeds_of_episodes(made)) == 2 * episodes


@pytest.mark.parametrize("episodes", [0, -1])
def test_no_episodes_are_no_evaluation(episodes):
    with pytest.raises(ValueError, match=rf"episodes is {episodes} .*must be >= 1"):
        evaluate(Constant(0.0, 0.0), Counting, episodes=episodes)


# Both ways.


def test_argmax_takes_the_mode_and_sampled_the_policy():
    # Going on has probability 0.6, so the mode never quits: 1 + 2 + 3 = 6.
    report = evaluate(Constant(math.log(0.6), math.log(0.4)), Quitting, episodes=64)
    assert report.argmax.returns.tolist() == [6.0] * 64
    lengths = report.sampled.lengths
    assert 0.2 < float((lengths == 1).float().mean()) < 0.6  # 0.4
    expected = lengths * (lengths + 1) / 2
    assert torch.equal(report.sampled.returns, expected)


def test_a_gaussian_s_mode_is_its_mean():
    # The mean earns 0; the spread costs.
    report = evaluate(Constant(0.5, -0.5, 0.0, 0.0), Lifting, episodes=4)
    assert report.argmax.mean == pytest.approx(0.0, abs=1e-6)
    assert report.sampled.mean < -0.1


def test_the_entropy_is_that_of_the_start_states():
    def uniform_at_the_start(rows):
        certain = 100.0 * (rows[:, 1] > 0)
        return torch.stack([certain, torch.zeros(len(rows))], dim=1)

    report = evaluate(Gives(uniform_at_the_start), Counting, episodes=10)
    assert report.start_entropy == pytest.approx(math.log(2))


# The numbers.


def test_statistics():
    numbers = statistics([1.0, 2.0, 6.0, 7.0], [1, 2, 3, 6], threshold=6.0)
    assert numbers.mean == 4.0
    assert numbers.std == pytest.approx(math.sqrt((9 + 4 + 4 + 9) / 4))
    assert numbers.solved == 0.5  # 6 reaches 6
    assert numbers.length == 3.0
    assert statistics([1.0]).solved is None
    assert statistics([1.0]).std == 0.0


def test_a_report_as_a_row():
    report = EvaluationReport(statistics([1.0, 3.0], [4, 6], 3.0), statistics([0.0, 0.0], [1, 1], 3.0), 0.25)
    assert report.as_row() == {
        "argmax_mean": 2.0,
        "argmax_std": 1.0,
        "argmax_solved": 0.5,
        "argmax_length": 5.0,
        "sampled_mean": 0.0,
        "sampled_std": 0.0,
        "sampled_solved": 0.0,
        "sampled_length": 1.0,
        "start_entropy": 0.25,
    }
    assert json.loads(json.dumps(report.as_row())) == report.as_row()


def test_a_report_as_a_table():
    with_threshold = EvaluationReport(statistics([1.0, 3.0], [4, 6], 3.0), statistics([0.0, 0.0], [1, 1], 3.0), 0.25)
    header, argmax, sampled, footer = str(with_threshold).splitlines()
    assert header.split() == ["return", "±", "solved", "length"]
    assert argmax.split() == ["argmax", "2.0", "1.0", "50%", "5.0"]
    assert sampled.split() == ["sampled", "0.0", "0.0", "0%", "1.0"]
    assert footer == "2 episodes each, entropy at the start 0.25 nats, solved: return >= 3"
    without = EvaluationReport(statistics([1.0]), statistics([0.0]), 0.25)
    assert "%" not in str(without)
    assert "solved:" not in str(without)


def test_the_environment_s_own_threshold_and_a_given_one():
    assert evaluate(mlp(4, 2), "CartPole-v1", episodes=1).argmax.threshold == 475.0
    assert evaluate(mlp(4, 2), "CartPole-v1", episodes=1, threshold=5.0).argmax.solved == 1.0
    assert evaluate(Constant(0.0, 0.0), Counting, episodes=1).argmax.threshold is None


# Nothing is disturbed.


def test_evaluation_is_reproducible():
    policy = Constant(0.3, 0.0)
    first, again = (evaluate(policy, Quitting, episodes=20) for _ in range(2))
    assert torch.equal(first.sampled.returns, again.sampled.returns)
    other = evaluate(policy, Quitting, episodes=20, first_seed=CHOOSING_SEEDS)
    assert not torch.equal(first.sampled.returns, other.sampled.returns)


@pytest.mark.usefixtures("without_shape_hook")
def test_evaluation_leaves_the_global_generators_alone():
    with global_generators_untouched():
        evaluate(mlp(4, 2), "CartPole-v1", episodes=2)


def test_dropout_is_off_while_evaluating_and_the_mode_comes_back():
    module = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.9), nn.Linear(4, 2))
    seen = []
    module[1].register_forward_hook(lambda layer, *arguments: seen.append(layer.training))
    module.train()
    evaluate(module, Counting, episodes=2)
    assert seen
    assert not any(seen)
    assert all(part.training for part in module.modules())
    module.eval()
    evaluate(module, Counting, episodes=2)
    assert not any(part.training for part in module.modules())


def test_a_part_that_was_in_evaluation_mode_stays_in_it():
    module = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.9), nn.Linear(4, 2))
    module.train()
    module[1].eval()
    evaluate(module, Counting, episodes=2)
    assert [part.training for part in module] == [True, False, True]


@pytest.mark.parametrize("value", [1.0, math.nan], ids=["done", "failed"])
def test_modes_threads_and_environments_are_given_back(value):
    made, closed = [], []

    class Closing(GivesReward):
        def __init__(self):
            super().__init__(value)
            made.append(self)

        def close(self):
            closed.append(self)

    module = Constant(0.0, 0.0)
    module.train()
    threads = torch.get_num_threads()
    if math.isfinite(value):
        evaluate(module, Closing, episodes=3)
    else:
        with pytest.raises(ValueError, match="gave reward nan"):
            evaluate(module, Closing, episodes=3)
    assert module.training
    assert sorted(map(id, closed)) == sorted(map(id, made))
    assert torch.get_num_threads() == threads


def test_no_gradient_is_left():
    module = Constant(0.0, 0.0)
    report = evaluate(module, Counting, episodes=2)
    assert module.output.grad is None
    assert not report.argmax.returns.requires_grad


def test_a_trainer_evaluates_in_its_own_environment_without_a_trace():
    trainer = GRPOTrainer(mlp(3, 3), Bandit, group_size=2, groups_per_step=1)
    report = trainer.evaluate(episodes=12)
    same = evaluate(trainer.policy, Bandit, episodes=12)
    assert torch.equal(report.sampled.returns, same.sampled.returns)
    assert torch.equal(report.argmax.returns, same.argmax.returns)
    assert (trainer.iteration, trainer.num_steps) == (0, 0)
    assert trainer.evaluate(episodes=1, first_seed=7).argmax.returns.shape == (1,)


@pytest.mark.usefixtures("without_shape_hook")
def test_sources_are_those_of_a_sampler():
    with pytest.raises(TypeError, match=r"one environment.*factory"):
        evaluate(Constant(0.0, 0.0), Counting(), episodes=2)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        evaluate(SimpleNamespace(), Counting, episodes=2)


def test_a_normaliser_learns_nothing_from_an_evaluation():
    def trained(*callbacks):
        module = Normalized(mlp(3, 3, seed=0), Bandit.observation_space)
        trainer = GRPOTrainer(module, Bandit, group_size=2, groups_per_step=2, callbacks=callbacks)
        trainer.train(iterations=4)
        return parameters_of(trainer.policy)  # statistics are buffers

    without = trained()
    for every in (4, 8):  # each iteration takes four steps
        assert_same_parameters(trained(EvaluateEvery(every, episodes=3)), without)


def test_reports_are_frozen():
    report = evaluate(Constant(0.0, 0.0), Counting, episodes=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.start_entropy = 1.0


def test_lengths_and_returns_are_those_of_a_real_episode():
    # Always pushing to the left: replayed by hand.
    report = evaluate(Constant(50.0, 0.0), "CartPole-v1", episodes=3, first_seed=9)
    environment = gymnasium.make("CartPole-v1")
    for episode in range(3):
        environment.reset(seed=9 + episode)
        steps, ended = 0, False
        while not ended:
            _, _, dead, cut, _ = environment.step(0)
            steps, ended = steps + 1, dead or cut
        assert report.argmax.lengths[episode] == report.sampled.lengths[episode] == steps
        assert report.argmax.returns[episode] == steps
    environment.close()
    assert np.isfinite(report.argmax.std)
