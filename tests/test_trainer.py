import json
import math
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from environments import Bandit, Counting, GivesReward, Quitting
from gymnasium.spaces import Discrete
from helpers import (
    Constant,
    assert_same_parameters,
    bools,
    global_generators_untouched,
    make_batch,
    parameters_of,
)
from torch import nn

from grpolib import (
    Action,
    Callback,
    ClippedSurrogateLoss,
    EvaluateEvery,
    Evaluation,
    GroupSampler,
    GroupZScore,
    GRPOTrainer,
    LeaveOneOut,
    LossOutput,
    MinibatchPlan,
    Recipe,
    Trainer,
    mlp,
    recipes,
)

TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}
GOLDEN = Path(__file__).parent / "golden" / "bandit.json"
WHOLE = MinibatchPlan(epochs=1, size=None)


def trainer_of(env=Bandit, module=None, *, sizes=(3, 3), **keywords):
    """A small trainer; twelve steps an iteration of `Counting`."""
    settings = {"group_size": 2, "groups_per_step": 2, "plan": MinibatchPlan(epochs=2, size=4), **keywords}
    return GRPOTrainer(module or mlp(*sizes), env, **settings)


def counting_trainer(**keywords):
    return trainer_of(Counting, sizes=(2, 2), **keywords)


def without_timings(metrics):
    return {name: value for name, value in metrics.items() if name not in TIMINGS}


class Recorder(Callback):
    """Keeps what it is called with, in a list that several may share."""

    def __init__(self, name="", calls=None, stop_at=None):
        self.name, self.stop_at = name, stop_at
        self.calls = [] if calls is None else calls
        self.metrics = []

    def on_train_start(self, trainer):
        self.calls.append(f"{self.name}start")

    def on_iteration_end(self, trainer, metrics):
        self.calls.append(f"{self.name}{trainer.iteration}")
        self.metrics.append(without_timings(metrics))
        return False if trainer.iteration == self.stop_at else None

    def on_train_end(self, trainer):
        self.calls.append(f"{self.name}end")


class FixedSampler:
    """Gives the same batch every time."""

    def __init__(self, batch, max_length=None):
        self.batch, self.max_length, self.closed = batch, max_length, False
        self.action_space = Discrete(batch.num_steps)

    def sample(self, policy, num_groups, seed, *, first_group=0):
        return self.batch

    def close(self):
        self.closed = True


def fixed_trainer(batch, **pieces):
    module = Constant(*[0.0] * batch.num_steps)
    settings = {"advantages": GroupZScore(), "loss": [ClippedSurrogateLoss()], "plan": WHOLE, **pieces}
    max_length = settings.pop("max_length", None)
    return Trainer(module, FixedSampler(batch, max_length), **settings)


def pull_up(evaluation, minibatch):
    return LossOutput(-(evaluation.log_probs * minibatch.advantages * minibatch.weights).sum())


# Determinism.


def cartpole_run(seed=0, recipe=None, **keywords):
    recorder = Recorder()
    keywords["callbacks"] = [*keywords.get("callbacks", ()), recorder]
    plan = MinibatchPlan(epochs=2, size=64)
    trainer = GRPOTrainer(
        mlp(4, 16, 2),
        "CartPole-v1",
        recipe=recipe or recipes.grpo(),
        seed=seed,
        group_size=3,
        groups_per_step=2,
        plan=plan,
        **keywords,
    )
    trainer.train(iterations=3)
    return parameters_of(trainer.policy), recorder.metrics


@pytest.fixture(scope="module")
def cartpole():
    return cartpole_run()


def test_the_same_seed_gives_the_same_weights_and_metrics(cartpole):
    parameters, metrics = cartpole_run()
    assert_same_parameters(parameters, cartpole[0])
    assert metrics == cartpole[1]


def test_another_seed_gives_other_weights_and_metrics(cartpole):
    parameters, metrics = cartpole_run(seed=1)
    assert not torch.equal(parameters["module.2.weight"], cartpole[0]["module.2.weight"])
    assert metrics[0]["num_steps"] != cartpole[1][0]["num_steps"]


@pytest.mark.usefixtures("without_shape_hook")
def test_global_generators_neither_change_nor_matter(cartpole):
    with global_generators_untouched():
        parameters, metrics = cartpole_run()
    assert_same_parameters(parameters, cartpole[0])
    assert metrics == cartpole[1]


@pytest.mark.parametrize("every", [1, 120], ids=["each iteration", "now and then"])
def test_evaluation_does_not_change_training(cartpole, every):
    parameters, metrics = cartpole_run(callbacks=[EvaluateEvery(every, episodes=2)])
    assert_same_parameters(parameters, cartpole[0])
    assert metrics == cartpole[1]


def test_training_in_pieces_is_training_at_once():
    at_once, in_pieces = counting_trainer(), counting_trainer()
    at_once.train(iterations=4)
    in_pieces.train(iterations=1)
    in_pieces.evaluate(episodes=2)
    in_pieces.train(total_steps=36)
    in_pieces.step()
    assert at_once.iteration == in_pieces.iteration == 4
    assert_same_parameters(parameters_of(at_once.policy), parameters_of(in_pieces.policy))


def test_iterations_draw_anew():
    contexts, orders = [], []

    def watch(evaluation, minibatch):
        contexts.append(set(minibatch.inputs.observations[:, 0].tolist()))
        orders.append(minibatch.inputs.observations[:, 1].tolist())
        return LossOutput(evaluation.log_probs.sum() * 0)

    trainer = trainer_of(lambda: Counting(8), sizes=(2, 2), recipe=recipes.critic_free(), loss=[watch], plan=WHOLE)
    trainer.train(iterations=2)
    assert contexts[0].isdisjoint(contexts[1])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


# It learns.


def learner(env, sizes, seed, learning_rate, recipe):
    return GRPOTrainer(
        mlp(*sizes, seed=seed),
        env,
        recipe=recipe,
        seed=seed,
        group_size=8,
        groups_per_step=3,
        plan=MinibatchPlan(epochs=4, size=24),
        optimizer=partial(torch.optim.Adam, lr=learning_rate),
    )


@pytest.mark.parametrize("recipe", [recipes.grpo(), recipes.critic_free()], ids=["grpo", "critic free"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_which_arm_goes_with_which_context(recipe, seed):
    # Chance is 1/3.
    trainer = learner(Bandit, (3, 3), seed, 0.05, recipe)
    before = trainer.evaluate(episodes=24).sampled.mean
    trainer.train(iterations=15)
    after = trainer.evaluate(episodes=24)
    assert before < 0.6
    assert after.argmax.mean == 1.0
    assert after.sampled.mean > 0.7


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_to_keep_an_episode_going(seed):
    # Each step pays its number, so quitting at once pays 1 and never quitting 1 + 2 + ... + 6 = 21.
    trainer = learner(lambda: Quitting(6), (2, 8, 2), seed, 0.03, recipes.critic_free())
    before = trainer.evaluate(episodes=24).sampled.mean
    trainer.train(iterations=12)
    assert before < 8
    assert trainer.evaluate(episodes=24).sampled.mean > 18


def test_the_curve_of_five_iterations_is_the_recorded_one():
    """To record it anew: REMAKE_GOLDEN=1 python -m pytest tests/test_trainer.py -n 0 -k recorded"""
    curves = {}
    for name, recipe in {"grpo": recipes.grpo(), "critic_free": recipes.critic_free()}.items():
        recorder = Recorder()
        trainer = GRPOTrainer(
            mlp(2, 8, 2),
            Quitting,
            recipe=recipe,
            group_size=4,
            groups_per_step=2,
            plan=MinibatchPlan(epochs=2, size=8),
            optimizer=partial(torch.optim.Adam, lr=0.01),
            callbacks=[recorder],
        )
        trainer.train(iterations=5)
        kept = ("num_steps", "return_mean", "loss", "grad_norm", "entropy")
        curves[name] = {key: [metrics[key] for metrics in recorder.metrics] for key in kept}
    if os.environ.get("REMAKE_GOLDEN"):
        GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")
    recorded = json.loads(GOLDEN.read_text())
    assert curves.keys() == recorded.keys()
    for name, curve in curves.items():
        assert curve.keys() == recorded[name].keys()
        for key, values in curve.items():
            assert values == pytest.approx(recorded[name][key], rel=1e-4, abs=1e-6), (name, key)


# How long it trains.


def test_a_run_has_at_least_the_steps_asked_for_and_less_than_an_iteration_more():
    trainer = counting_trainer()
    trainer.train(total_steps=30)
    assert (trainer.num_steps, trainer.iteration) == (36, 3)
    trainer.train(total_steps=36)
    assert (trainer.num_steps, trainer.iteration) == (36, 3)
    trainer.train(total_steps=37)
    assert (trainer.num_steps, trainer.iteration) == (48, 4)
    trainer.train(iterations=2)
    assert (trainer.num_steps, trainer.iteration) == (72, 6)


def test_fewer_steps_than_an_iteration_are_one_iteration():
    trainer = counting_trainer()
    with pytest.warns(UserWarning, match=r"total_steps is 1, and the first iteration took 12"):
        trainer.train(total_steps=1)
    assert (trainer.num_steps, trainer.iteration) == (12, 1)


def test_as_many_steps_as_an_iteration_are_no_small_budget():
    trainer = counting_trainer()
    trainer.train(total_steps=12)
    trainer.train(total_steps=13)
    assert trainer.iteration == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, r"either total_steps= or iterations="),
        ({"total_steps": 5, "iterations": 5}, TypeError, r"either total_steps= or iterations="),
        ({"total_steps": 0}, ValueError, r"total_steps is 0.*>= 1"),
        ({"iterations": -2}, ValueError, r"iterations is -2.*>= 1"),
    ],
)
def test_budgets_that_cannot_be(arguments, error, message):
    recorder = Recorder()
    trainer = counting_trainer(callbacks=[recorder])
    with pytest.raises(error, match=message):
        trainer.train(**arguments)
    assert recorder.calls == []


def test_a_seed_is_not_negative():
    with pytest.raises(ValueError, match=r"seed is -1.*>= 0"):
        counting_trainer(seed=-1)


# Callbacks.


def test_callbacks_are_called_in_the_order_given_and_end_like_nested_blocks():
    calls = []
    trainer = counting_trainer(callbacks=[Recorder("a", calls), Recorder("b", calls)])
    trainer.train(iterations=2)
    assert calls == ["astart", "bstart", "a1", "b1", "a2", "b2", "bend", "aend"]


def test_returning_false_stops_after_the_iteration():
    calls = []
    callbacks = [Recorder("a", calls, stop_at=2), Recorder("b", calls)]
    trainer = counting_trainer(callbacks=callbacks)
    trainer.train(iterations=9)
    assert calls == ["astart", "bstart", "a1", "b1", "a2", "b2", "bend", "aend"]
    assert trainer.iteration == 2


def test_callbacks_see_the_end_also_after_an_error():
    recorder = Recorder()
    trainer = trainer_of(lambda: GivesReward(math.nan), sizes=(2, 2), callbacks=[recorder])
    with pytest.raises(ValueError, match="gave reward nan"):
        trainer.train(iterations=3)
    assert recorder.calls == ["start", "end"]


def test_only_callbacks_that_were_started_see_the_end():
    class Failing(Callback):
        def on_train_start(self, trainer):
            raise RuntimeError("no start")

    calls = []
    trainer = counting_trainer(callbacks=[Recorder("a", calls), Failing(), Recorder("c", calls)])
    with pytest.raises(RuntimeError, match="no start"):
        trainer.train(iterations=1)
    assert calls == ["astart", "aend"]


def test_every_end_is_called_whatever_another_one_raises():
    class Failing(Callback):
        def on_train_end(self, trainer):
            raise RuntimeError("no end")

    calls = []
    trainer = counting_trainer(callbacks=[Recorder("a", calls), Failing(), Recorder("c", calls)])
    with pytest.raises(RuntimeError, match="no end"):
        trainer.train(iterations=1)
    assert calls == ["astart", "cstart", "a1", "c1", "cend", "aend"]


def test_the_metrics_of_an_iteration_are_its_return_value():
    recorder = Recorder()
    counting_trainer(callbacks=[recorder]).train(iterations=1)
    assert recorder.metrics[0] == without_timings(counting_trainer().step())


@pytest.mark.parametrize("every", [1, 12, 24])
def test_evaluation_at_the_start_and_whenever_a_multiple_was_passed(every):
    seen = []

    class Watch(Callback):
        def on_evaluation(self, trainer, report):
            seen.append(trainer.num_steps)
            assert len(report.argmax.returns) == 3

    trainer = counting_trainer(callbacks=[EvaluateEvery(every, episodes=3), Watch()])
    trainer.train(iterations=2)
    trainer.train(iterations=2)
    assert seen == [0, *range(max(every, 12), 49, max(every, 12))]


def test_evaluating_never_is_leaving_the_callback_out():
    with pytest.raises(ValueError, match=r"steps=0 .*must be >= 1"):
        EvaluateEvery(0)


def test_training_is_silent_where_there_is_no_terminal(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counting_trainer().train(iterations=2)
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


# Schedules.


def test_schedules_are_called_once_an_iteration_before_anything_else():
    seen = []

    def rate(trainer):
        seen.append((trainer.iteration, trainer.num_steps))
        for group in trainer.optimizer.param_groups:
            group["lr"] = 1.0 / trainer.iteration

    module = Constant(0.0, 0.0)

    def slope(evaluation, minibatch):
        return LossOutput(evaluation.log_probs.sum() * 0 - module.output.sum())

    trainer = trainer_of(
        Counting,
        module,
        recipe=recipes.critic_free(),
        loss=[slope],
        schedules=[rate],
        plan=MinibatchPlan(epochs=2, size=None),
        optimizer=partial(torch.optim.SGD, lr=99.0),
        max_grad_norm=100.0,
    )
    trainer.train(iterations=2)
    assert seen == [(1, 0), (2, 12)]
    # Two epochs at rate 1, two at rate 1/2, slope 1.
    assert module.output.tolist() == [3.0, 3.0]


# What must not reach the policy.


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_and_leaves_the_policy_as_it_was(value):
    module = mlp(2, 2)

    def loss(evaluation, minibatch):
        bad = value if trainer.iteration == 2 else 1.0
        return LossOutput((evaluation.log_probs * bad * minibatch.weights).sum())

    recorder = Recorder()
    settings = {"recipe": recipes.critic_free(), "loss": [loss], "plan": WHOLE, "callbacks": [recorder]}
    trainer = trainer_of(Counting, module, **settings)
    trainer.train(iterations=1)
    before = parameters_of(module)
    with pytest.raises(
        FloatingPointError,
        match=r"gradient's norm is (nan|inf), the loss .*step was not taken, the policy is as it was",
    ):
        trainer.train(iterations=1)
    assert_same_parameters(parameters_of(module), before)
    assert all(bool(value.isfinite().all()) for value in before.values())
    assert recorder.calls[-1] == "end"


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda evaluation: evaluation.log_probs.sum(), "gave a Tensor"),
        (lambda evaluation: (evaluation.log_probs.sum(), {}), "gave a tuple"),
        (lambda evaluation: None, "gave a NoneType"),
    ],
)
def test_a_loss_that_gives_something_else_is_named_with_what_it_must_give(gives, message):
    def mine(evaluation, minibatch):
        return gives(evaluation)

    trainer = trainer_of(Counting, mlp(2, 2), recipe=recipes.critic_free(), loss=[mine], plan=WHOLE)
    with pytest.raises(TypeError, match=rf"mine.* {message}: return LossOutput\(loss, metrics\)"):
        trainer.train(iterations=1)


def test_an_error_while_sampling_leaves_the_policy_as_it_was():
    trainer = trainer_of(lambda: GivesReward(math.inf), sizes=(2, 2))
    before = parameters_of(trainer.policy)
    with pytest.raises(ValueError, match=r"GivesReward.* gave reward inf"):
        trainer.train(iterations=1)
    assert_same_parameters(parameters_of(trainer.policy), before)


def test_an_estimator_with_the_wrong_shape_is_named():
    trainer = counting_trainer(recipe=recipes.critic_free(), advantages=lambda batch: batch.episode_returns)
    with pytest.raises(ValueError, match=r"advantages have shape \(4,\), the batch has 12 steps"):
        trainer.step()


def test_the_policy_learns_nothing_from_a_batch_in_which_nothing_counts():
    batch = make_batch((2, 2), scored=bools(False, False))
    trainer = fixed_trainer(batch)
    recorder = Recorder()
    trainer.callbacks.insert(0, recorder)
    before = parameters_of(trainer.policy)
    trainer.train(iterations=2)
    assert_same_parameters(parameters_of(trainer.policy), before)
    assert all(math.isfinite(value) for value in recorder.metrics[0].values())


def test_unscored_episodes_do_not_move_the_policy():
    rewards = torch.tensor([1.0, 1.0, 4.0, 4.0, 9.0, 9.0])
    log_probs = torch.full((6,), 1 / 6).log()
    settings = {"group_ids": (0, 0, 0), "log_probs": log_probs, "scored": bools(True, True, False)}
    moved = []
    for reward in (9.0, math.nan):
        batch = make_batch((2, 2, 2), rewards=torch.cat([rewards[:4], torch.full((2,), reward)]), **settings)
        trainer = fixed_trainer(batch)
        trainer.step()
        moved.append(trainer.policy.module.output.detach())
    assert torch.equal(*moved)
    # Actions 0 and 1 were worse than 2 and 3; 4 and 5 do not count, so they only share the normalisation.
    assert float(moved[0][:2].max()) < 0 < float(moved[0][2:4].min())
    assert moved[0][4] == moved[0][5]


# Which mean.


@pytest.mark.parametrize("reduction", ["episode_mean", "step_mean", "constant"])
def test_the_reduction_reaches_the_weights(reduction):
    seen = []

    def loss(evaluation, minibatch):
        seen.append(dict(zip(minibatch.inputs.actions.tolist(), minibatch.weights.tolist(), strict=True)))
        return LossOutput(evaluation.log_probs.sum() * 0)

    fixed_trainer(make_batch((1, 3)), loss=[loss], reduction=reduction, max_length=10).step()
    expected = {
        "episode_mean": [1 / 2, 1 / 6, 1 / 6, 1 / 6],
        "step_mean": [1 / 4] * 4,
        "constant": [1 / 20] * 4,  # the sampler's longest episode is 10 steps
    }[reduction]
    assert [seen[0][row] for row in range(4)] == pytest.approx(expected)


def test_the_constant_mean_needs_a_longest_episode():
    with pytest.raises(ValueError, match=r"'constant' divides by max_length.*time limit"):
        counting_trainer(reduction="constant").step()


# The numbers of an iteration.


def test_metrics_of_a_batch():
    # Returns 1, 3 and 5, 5: stds 1 and 0. Lengths 1, 2, 1, 2.
    rewards = torch.tensor([1.0, 1.0, 2.0, 5.0, 2.0, 3.0])
    log_probs = torch.full((6,), 1 / 6).log()
    batch = make_batch((1, 2, 1, 2), (0, 0, 1, 1), rewards, log_probs=log_probs)
    metrics = fixed_trainer(replace(batch, terminated=bools(True, False, True, True))).step()
    assert (metrics["iteration"], metrics["num_steps"]) == (1, 6)
    expected = {
        "return_mean": 3.5,
        "group_return_std": 0.5,
        "degenerate_fraction": 0.5,
        "near_degenerate_fraction": 0.5,
        "length_mean": 1.5,
        "length_max": 2.0,
        "truncated_fraction": 0.25,
        "entropy": math.log(6),
        "ratio_min": 1.0,
        "ratio_max": 1.0,
        "clip_fraction": 0.0,
        "kl_old_k3": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert all(type(value) in (int, float) for value in metrics.values())


def test_unscored_episodes_stay_out_of_the_metrics():
    rewards = torch.tensor([1.0, 3.0, math.nan])
    metrics = fixed_trainer(make_batch((1, 1, 1), rewards=rewards, scored=bools(True, True, False))).step()
    assert metrics["return_mean"] == 2.0
    assert metrics["group_return_std"] == 1.0


def test_metrics_of_the_minibatches_are_means_or_extremes():
    values = iter([1.0, 2.0, 6.0, 3.0])

    def loss(evaluation, minibatch):
        value = torch.tensor(next(values))
        return LossOutput(evaluation.log_probs.sum() * 0 + value, {"x": value, "x_min": value, "x_max": value})

    metrics = fixed_trainer(make_batch((2, 2)), loss=[loss], plan=MinibatchPlan(epochs=2, size=2)).step()
    assert (metrics["x"], metrics["x_min"], metrics["x_max"], metrics["loss"]) == (3.0, 1.0, 6.0, 3.0)


def test_metrics_keep_their_names_where_a_loss_reports_others_now_and_then():
    updates = []

    def loss(evaluation, minibatch):
        updates.append(len(updates))
        value = LossOutput(evaluation.log_probs.sum() * 0, {"a": torch.tensor(1.0)})
        return value if len(updates) == 1 else replace(value, metrics={"b": torch.tensor(2.0), **value.metrics})

    metrics = fixed_trainer(make_batch((2, 2)), loss=[loss], plan=MinibatchPlan(epochs=1, size=2)).step()
    assert metrics["a"] == 1.0
    assert metrics.get("b", 2.0) == 2.0


def test_the_first_minibatch_is_on_policy():
    metrics = counting_trainer(plan=WHOLE).step()
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)


# Policies and samplers of one's own.


class OwnPolicy(nn.Module):
    """Scores and acts without the library's adapter."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))
        self.modes = []

    def act(self, observations, rng, *, state=None, deterministic=False):
        self.modes.append(self.training)
        actions = torch.randint(2, (len(observations),), generator=rng)
        return Action(actions, self.logits.log_softmax(0)[actions].detach())

    def evaluate(self, inputs):
        self.modes.append(self.training)
        log_probs = self.logits.log_softmax(0)
        entropy = -(log_probs.exp() * log_probs).sum()
        return Evaluation(log_probs[inputs.actions], entropy.expand(len(inputs)))


def test_a_policy_of_one_s_own_is_trained_as_it_is():
    policy = OwnPolicy()
    trainer = trainer_of(Quitting, policy, recipe=recipes.critic_free())
    assert trainer.policy is policy
    trainer.train(iterations=3)
    assert policy.logits[0] > policy.logits[1]  # going on pays
    assert not any(policy.modes)


def test_a_policy_that_was_switched_to_training_mode_is_switched_back():
    policy = OwnPolicy()
    trainer = trainer_of(Quitting, policy, recipe=recipes.critic_free())
    policy.train()
    trainer.train(iterations=1)
    assert not any(policy.modes)


def test_frozen_parameters_stay_frozen():
    module = mlp(2, 4, 2)
    module[0].weight.requires_grad_(False)
    before = parameters_of(module)
    trainer_of(Quitting, module, group_size=4).train(iterations=1)
    after = parameters_of(module)
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["0.bias"], before["0.bias"])


@pytest.mark.usefixtures("without_shape_hook")
def test_what_is_no_policy_is_refused():
    with pytest.raises(TypeError, match=r"a policy is a torch\.nn\.Module, got function"):
        trainer_of(module=lambda rows: rows)


def test_a_module_needs_a_sampler_that_knows_its_actions():
    sampler = FixedSampler(make_batch())
    del sampler.action_space
    with pytest.raises(TypeError, match=r"Constant has no evaluate\(inputs\).*wrap it in a Policy"):
        Trainer(Constant(0.0), sampler, advantages=GroupZScore())


def test_a_sampler_without_an_environment_cannot_be_evaluated_in():
    with pytest.raises(TypeError, match=r"FixedSampler has no environment to evaluate in"):
        fixed_trainer(make_batch()).evaluate(episodes=1)


def test_a_trainer_on_one_factory_a_member_can_evaluate():
    trainer = trainer_of([Counting, Counting], sizes=(2, 2))
    assert trainer.evaluate(episodes=10).sampled.mean == 3.0


def test_every_piece_by_hand():
    sampler = GroupSampler(Bandit, 3)
    trainer = Trainer(
        mlp(3, 3),
        sampler,
        advantages=LeaveOneOut(),
        loss=[ClippedSurrogateLoss()],
        reduction="step_mean",
        plan=MinibatchPlan(epochs=1, size=1, by="episode"),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        groups_per_step=2,
        max_grad_norm=1.0,
        seed=3,
    )
    assert trainer.recipe == Recipe(**trainer.recipe.pieces())
    assert trainer.step()["num_steps"] == 6


def test_the_seed_of_an_iteration_is_the_trainer_s_seed_and_its_number():
    seeds = []

    class Sampler(FixedSampler):
        def sample(self, policy, num_groups, seed, *, first_group=0):
            seeds.append((seed.entropy, seed.spawn_key, num_groups, first_group))
            assert isinstance(seed, np.random.SeedSequence)
            return self.batch

    trainer = Trainer(Constant(*[0.0] * 6), Sampler(make_batch()), advantages=GroupZScore(), plan=WHOLE, seed=5)
    trainer.train(iterations=2)
    assert seeds == [(5, (1,), 4, 0), (5, (2,), 4, 0)]


# Threads.


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fails", [False, True])
def test_a_small_policy_is_updated_on_one_thread(fails):
    seen = []

    def loss(evaluation, minibatch):
        seen.append(torch.get_num_threads())
        return LossOutput(evaluation.log_probs.sum() * (math.nan if fails else 0.0))

    trainer = counting_trainer(recipe=recipes.critic_free(), loss=[loss])
    if fails:
        with pytest.raises(FloatingPointError):
            trainer.step()
    else:
        trainer.step()
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


# Ctrl-C and SIGTERM.

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
RAISED = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


@pytest.fixture
def usual_handlers():
    before = {number: signal.signal(number, usual) for number, usual in USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def are_usual():
    return all(signal.getsignal(number) is usual for number, usual in USUAL.items())


class Signals(Recorder):
    """Gets signals in the middle of iteration 2."""

    def __init__(self, *numbers):
        super().__init__()
        self.numbers = numbers

    def press(self, batch):
        if len(self.calls) == 2:
            for number in self.numbers:
                signal.raise_signal(number)
        return GroupZScore()(batch)


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("number", USUAL)
def test_the_first_signal_lets_the_iteration_finish(number):
    recorder = Signals(number)
    trainer = counting_trainer(advantages=recorder.press, callbacks=[recorder])
    with pytest.raises(RAISED[number]) as raised:
        trainer.train(iterations=5)
    assert number == signal.SIGINT or raised.value.code == 143
    assert recorder.calls == ["start", "1", "2", "end"]
    assert not trainer.is_mid_iteration
    assert are_usual()


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("first", USUAL)
def test_ctrl_c_after_another_signal_stops_at_once(first):
    recorder = Signals(first, signal.SIGINT)
    trainer = counting_trainer(advantages=recorder.press, callbacks=[recorder])
    with pytest.raises(KeyboardInterrupt):
        trainer.train(iterations=5)
    assert recorder.calls == ["start", "1", "end"]
    assert trainer.is_mid_iteration
    assert are_usual()


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("number", USUAL)
def test_a_signal_while_the_end_is_written_is_not_lost(number):
    class SignalsAtTheEnd(Recorder):
        def on_train_end(self, trainer):
            signal.raise_signal(number)
            super().on_train_end(trainer)

    recorder = SignalsAtTheEnd()
    with pytest.raises(RAISED[number]):
        counting_trainer(callbacks=[recorder]).train(iterations=1)
    assert recorder.calls == ["start", "1", "end"]


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("number", USUAL)
def test_a_handler_of_one_s_own_stays(number):
    received = []
    signal.signal(number, lambda *arguments: received.append(arguments))
    recorder = Signals(number)
    trainer = counting_trainer(advantages=recorder.press, callbacks=[recorder])
    trainer.train(iterations=3)
    assert len(received) == 1
    assert trainer.iteration == 3


def test_a_sampler_stays_open_after_training():
    trainer = fixed_trainer(make_batch((1, 1), rewards=torch.tensor([1.0, 2.0])))
    trainer.train(iterations=1)
    assert not trainer.sampler.closed


@pytest.mark.parametrize("name", ["iteration", "return_mean", "updates", "steps_per_second"])
def test_a_loss_s_metric_hides_none_of_the_trainer_s(name):
    def mine(evaluation, minibatch):
        return LossOutput((evaluation.log_probs * minibatch.weights).sum(), {name: torch.tensor(99.0)})

    trainer = trainer_of(Counting, mlp(2, 2), recipe=recipes.critic_free(), loss=[mine], plan=WHOLE)
    with pytest.raises(ValueError, match=rf"the metric '{name}' stands for two things"):
        trainer.train(iterations=1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_advantage_that_is_not_finite_changes_nothing(bad):
    module = mlp(2, 2)

    def estimator(batch):
        advantages = torch.ones(batch.num_steps)
        advantages[-1] = bad
        return advantages

    trainer = trainer_of(Counting, module, recipe=recipes.critic_free(), advantages=estimator)
    before = parameters_of(module)
    with pytest.raises(ValueError, match=rf"advantages {bad} at step \d+ of member \d+ of group \d+"):
        trainer.train(iterations=1)
    assert_same_parameters(parameters_of(module), before)


def test_a_policy_without_anything_to_train_is_refused():
    module = mlp(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match=r"no parameter of the Sequential takes a gradient"):
        trainer_of(Counting, module, recipe=recipes.critic_free())
