"""PPO and A2C: what their recipes wire, what their trainers refuse, and that they learn."""

import contextlib
import math
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from environments import Bandit, Counting, Pixels, Quitting, box
from gymnasium.spaces import Discrete
from helpers import Gives, assert_same_parameters, parameters_of

from grpolib import (
    GAE,
    A2CTrainer,
    Callback,
    ClippedSurrogateLoss,
    Critic,
    EntropyBonus,
    GroupSampler,
    GroupZScore,
    LearningRate,
    LeaveOneOut,
    Linear,
    MinibatchPlan,
    PPOTrainer,
    StepSampler,
    Trainer,
    ValueLoss,
    as_policy,
    mlp,
    network,
    recipes,
)


class Recorder(Callback):
    """The metrics and the learning rates of all iterations."""

    def __init__(self):
        self.rows, self.rates = [], []

    def on_iteration_end(self, trainer, metrics):
        self.rows.append(metrics)
        self.rates.append([group["lr"] for group in trainer.optimizer.param_groups])


class Corridor(gymnasium.Env):
    """Five places in a row from the middle; action 1 goes right and 0 left. Right end +1, left end -1, a step -0.05.

    At random an episode earns about 0 before its steps; going right takes two of them, 0.9 in all.
    """

    observation_space = box(5)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 2, 0
        return self.observation(), {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        self.time += 1
        ended = self.place in (0, 4)
        reward = {0: -1.0, 4: 1.0}.get(self.place, 0.0) - 0.05
        return self.observation(), reward, ended, self.time == 20 and not ended, {}

    def observation(self):
        return np.eye(5, dtype=np.float32)[self.place]


def small(algorithm=PPOTrainer, env=Counting, *, width=2, actions=2, **options):
    options = {"num_envs": 2, "steps": 8, **options}
    return algorithm(mlp(width, 8, actions, seed=1), env, **options)


# The recipes.


def test_ppo_is_these_pieces():
    recipe = recipes.ppo()
    assert recipe.advantages == GAE(discount=0.99, gae_lambda=0.95, normalize=True)
    assert recipe.loss == [ClippedSurrogateLoss(0.2), ValueLoss(0.5)]
    assert recipe.reduction == "step_mean"
    assert recipe.plan == MinibatchPlan(epochs=4, size=64, by="step")
    assert (recipe.schedules, recipe.reference, recipe.critic) == ((), None, None)
    assert recipe.max_grad_norm == 0.5
    optimizer = recipe.optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is torch.optim.Adam
    assert (optimizer.defaults["lr"], optimizer.defaults["eps"]) == (3e-4, 1e-5)


def test_a2c_is_these_pieces():
    recipe = recipes.a2c()
    assert recipe.advantages == GAE(discount=0.99, gae_lambda=1.0, normalize=False)
    assert recipe.loss == [ClippedSurrogateLoss(0.2), ValueLoss(0.5)]
    assert recipe.reduction == "step_mean"
    assert recipe.plan == MinibatchPlan(epochs=1, size=None)
    assert recipe.schedules == ()
    optimizer = recipe.optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is torch.optim.RMSprop
    expected = {"lr": 7e-4, "alpha": 0.99, "eps": 1e-5}
    assert {name: optimizer.defaults[name] for name in expected} == expected


@pytest.mark.parametrize(("recipe", "rate"), [(recipes.ppo, 3e-4), (recipes.a2c, 7e-4)])
def test_with_a_horizon_the_learning_rate_is_annealed(recipe, rate):
    assert recipe(500).schedules == (LearningRate(Linear(rate, 0.0, total_steps=500)),)


BOTH = [(PPOTrainer, recipes.ppo), (A2CTrainer, recipes.a2c)]


@pytest.mark.parametrize(("algorithm", "recipe"), BOTH)
def test_the_annealed_rate_in_a_run(algorithm, recipe):
    # 16 steps an iteration. 64 steps are the horizon, then it overshoots.
    recorder = Recorder()
    trainer = small(algorithm, recipe=recipe(64), callbacks=[recorder])
    trainer.train(total_steps=40)
    trainer.train(total_steps=80)
    assert trainer.num_steps == 80
    rate = 3e-4 if algorithm is PPOTrainer else 7e-4
    rates = [rate for (rate,) in recorder.rates]
    assert rates == pytest.approx([rate, 0.75 * rate, 0.5 * rate, 0.25 * rate, 0.0])
    assert rates[-1] == 0.0


@pytest.mark.parametrize(("algorithm", "recipe"), BOTH)
def test_after_the_horizon_nothing_is_learned_any_more(algorithm, recipe):
    trainer = small(algorithm, recipe=recipe(32))
    trainer.train(iterations=2)
    policy, critic = parameters_of(trainer.policy), parameters_of(trainer.critic.module)
    trainer.train(iterations=2)
    assert_same_parameters(parameters_of(trainer.policy), policy)
    assert_same_parameters(parameters_of(trainer.critic.module), critic)


@pytest.mark.parametrize("algorithm", [PPOTrainer, A2CTrainer])
def test_two_calls_are_one(algorithm):
    trainers = [small(algorithm, Quitting) for _ in range(2)]
    trainers[0].train(iterations=4)
    trainers[1].train(iterations=1)
    trainers[1].train(iterations=3)
    assert_same_parameters(*(parameters_of(trainer.policy) for trainer in trainers))
    assert_same_parameters(*(parameters_of(trainer.critic.module) for trainer in trainers))
    assert trainers[0].num_steps == trainers[1].num_steps == 64


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("algorithm", "steps", "asked", "taken"),
    [(PPOTrainer, 2048, 10_000, 10_240), (PPOTrainer, 2048, 100, 2048), (A2CTrainer, 5, 6, 10)],
)
def test_a_rollout_is_never_cut(algorithm, steps, asked, taken):
    # At least what was asked for, and less than a rollout more.
    trainer = small(algorithm, num_envs=1, steps=steps, plan=MinibatchPlan(epochs=1, size=None))
    warns = pytest.warns(UserWarning, match=f"total_steps is {asked}") if asked < steps else contextlib.nullcontext()
    with warns:
        trainer.train(total_steps=asked)
    assert trainer.num_steps == taken


@pytest.mark.parametrize("algorithm", [PPOTrainer, A2CTrainer])
def test_the_seed_decides_the_run(algorithm):
    runs = []
    for seed in (3, 3, 4):
        trainer = small(algorithm, Quitting, seed=seed)
        trainer.train(iterations=2)
        runs.append(parameters_of(trainer.policy))
    assert_same_parameters(runs[0], runs[1])
    with pytest.raises(AssertionError):
        assert_same_parameters(runs[0], runs[2])


# What is logged.


def test_only_a_single_update_makes_every_ratio_one():
    rows = {}
    for name, algorithm in (("ppo", PPOTrainer), ("a2c", A2CTrainer)):
        recorder = Recorder()
        small(algorithm, Quitting, callbacks=[recorder], steps=64).train(iterations=2)
        rows[name] = recorder.rows
    for row in rows["a2c"]:
        assert (row["updates"], row["ratio_is_one_by_construction"]) == (1, 1.0)
        assert row["ratio_min"] == pytest.approx(1.0, abs=1e-6)
        assert row["ratio_max"] == pytest.approx(1.0, abs=1e-6)
        assert row["clip_fraction"] == 0.0
    for row in rows["ppo"]:
        # 128 steps in minibatches of 64, four times.
        assert (row["updates"], row["ratio_is_one_by_construction"]) == (8, 0.0)
        assert row["ratio_min"] < 1.0 < row["ratio_max"]


def test_two_updates_are_enough_to_leave_one():
    recorder = Recorder()
    small(A2CTrainer, Quitting, callbacks=[recorder], plan=MinibatchPlan(epochs=2, size=None)).train(iterations=1)
    assert (recorder.rows[0]["updates"], recorder.rows[0]["ratio_is_one_by_construction"]) == (2, 0.0)


def test_the_critic_and_the_finished_episodes_are_logged():
    recorder = Recorder()
    small(callbacks=[recorder], env=lambda: Counting(5), steps=12).train(iterations=2)
    for row in recorder.rows:
        assert math.isfinite(row["explained_variance"])
        assert row["explained_variance"] <= 1.0
        assert row["value_loss"] > 0.0
        assert (row["return_mean"], row["length_mean"]) == (5.0, 5.0)
        assert "group_return_std" not in row
    # Of each environment's segments of 12 steps: 5, 5 and a cut of 2; then 3, 5 and a cut of 4.
    assert [row["truncated_fraction"] for row in recorder.rows] == pytest.approx([1 / 3, 1 / 3])


def test_a_critic_that_learned_explains_the_returns():
    # The value of Counting's observation [context, time] is 5 - time.
    recorder = Recorder()
    exact = Critic(Gives(lambda x: 5.0 - x[:, 1]))
    pieces = {"advantages": GAE(1.0, 0.95), "critic": exact}
    small(env=lambda: Counting(5), steps=10, callbacks=[recorder], **pieces).train(iterations=1)
    assert recorder.rows[0]["explained_variance"] == pytest.approx(1.0)
    assert recorder.rows[0]["value_loss"] == pytest.approx(0.0, abs=1e-10)


# An update of A2C is the policy gradient.


def test_one_update_of_a2c_descends_the_policy_gradient_and_the_squared_error():
    policy, critic = mlp(2, 8, 2, seed=1), Critic(mlp(2, 8, 1, seed=2))
    pieces = {"critic": critic, "optimizer": partial(torch.optim.SGD, lr=0.1), "max_grad_norm": 1e9}
    sampler = StepSampler(Quitting, 2, 8)
    acting = as_policy(mlp(2, 8, 2, seed=1), sampler.action_space)
    batch = sampler.sample(acting, 2, np.random.SeedSequence(0, spawn_key=(1,)))
    twin = Critic(mlp(2, 8, 1, seed=2))
    annotated = twin.annotate(batch)
    estimator = GAE(0.99, 1.0, normalize=False)
    advantages, targets = estimator(annotated), estimator.returns(annotated)
    loss = -(acting.evaluate(batch.inputs).log_probs * advantages).mean()
    loss = loss + 0.5 * (twin(batch.inputs) - targets).square().mean()
    loss.backward()
    A2CTrainer(policy, Quitting, num_envs=2, steps=8, **pieces).train(iterations=1)
    for trained, by_hand in ((policy, acting), (critic.module, twin.module)):
        for new, old in zip(trained.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(new, old - 0.1 * old.grad, rtol=1e-5, atol=1e-7)


# They learn.


def returns(trainer, episodes=20):
    return trainer.evaluate(episodes=episodes).sampled.mean


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_goes_to_the_right_end_of_the_corridor(seed):
    trainer = PPOTrainer(
        mlp(5, 16, 2, seed=seed),
        Corridor,
        num_envs=8,
        steps=32,
        seed=seed,
        optimizer=partial(torch.optim.Adam, lr=5e-3),
    )
    assert returns(trainer, 30) < 0.4
    trainer.train(iterations=6)
    # Chance gives about -0.2, the other sign -1.1, and always going right 0.9.
    assert returns(trainer) > 0.8


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a2c_goes_to_the_right_end_of_the_corridor(seed):
    optimizer = partial(torch.optim.RMSprop, lr=5e-3, alpha=0.99, eps=1e-5)
    trainer = A2CTrainer(mlp(5, 16, 2, seed=seed), Corridor, steps=16, seed=seed, optimizer=optimizer)
    trainer.train(iterations=24)
    assert returns(trainer) > 0.8


# What the trainers take and refuse.


def test_the_critic_is_made_where_there_is_none_and_depends_on_the_seed():
    first, again, other = small(seed=5), small(seed=5), small(seed=6)
    assert_same_parameters(parameters_of(first.critic.module), parameters_of(again.critic.module))
    with pytest.raises(AssertionError):
        assert_same_parameters(parameters_of(first.critic.module), parameters_of(other.critic.module))
    assert first.critic.module(torch.zeros(3, 2)).shape == (3, 1)


def test_a_critic_of_one_s_own_is_taken():
    critic = Critic(mlp(2, 4, 1))
    assert small(critic=critic).critic is critic
    assert small(recipe=recipes.ppo().replaced(critic=critic)).critic is critic


def test_a_picture_has_a_ready_critic():
    trainer = PPOTrainer(network(Pixels.observation_space, 2), Pixels, num_envs=2, steps=4)
    trainer.train(iterations=1)
    assert trainer.critic is not None
    assert trainer.num_steps == 8


def test_a_ready_sampler_is_taken():
    sampler = StepSampler(Counting, 3, 5)
    trainer = PPOTrainer(mlp(2, 2), sampler)
    assert trainer.sampler is sampler
    trainer.train(iterations=1)
    assert trainer.num_steps == 15


@pytest.mark.parametrize("algorithm", [PPOTrainer, A2CTrainer])
@pytest.mark.parametrize("count", [{"num_envs": 4}, {"steps": 9}])
def test_counts_beside_a_ready_sampler_raise(algorithm, count):
    with pytest.raises(ValueError, match=next(iter(count))):
        algorithm(mlp(2, 2), StepSampler(Counting, 3, 5), **count)


@pytest.mark.parametrize("count", [{"groups_per_step": 3}, {"group_size": 4}])
def test_counts_of_groups_mean_nothing_to_segments_and_raise(count):
    with pytest.raises((TypeError, ValueError), match=next(iter(count))):
        small(**count)


def test_the_number_of_environments_is_the_number_of_groups():
    trainer = small(num_envs=10, steps=2)
    assert trainer.recipe.groups_per_step == 10
    trainer.train(iterations=1)
    assert trainer.num_steps == 20


@pytest.mark.usefixtures("without_shape_hook")
def test_a_sampler_of_groups_has_no_segments():
    with pytest.raises((TypeError, ValueError), match=r"GroupSampler|StepSampler"):
        PPOTrainer(mlp(2, 2), GroupSampler(Counting, 4))


@pytest.mark.parametrize("advantages", [GroupZScore(), LeaveOneOut()])
def test_estimators_of_groups_have_nothing_to_compare_in_segments(advantages):
    trainer = small(advantages=advantages, loss=[ClippedSurrogateLoss()])
    with pytest.raises(ValueError, match="segments of a StepSampler are no groups"):
        trainer.train(iterations=1)


def test_an_unknown_keyword_lists_the_pieces():
    with pytest.raises(TypeError, match=r"'entropy'.*advantages, loss, .*critic"):
        small(entropy=0.01)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("algorithm", [PPOTrainer, A2CTrainer])
def test_a_recipe_that_is_none_raises(algorithm):
    with pytest.raises(TypeError, match="give a Recipe"):
        small(algorithm, recipe=recipes.ppo)


def test_an_entropy_bonus_keeps_the_policy_random():
    entropies = []
    for losses in ([], [EntropyBonus(10.0)]):
        recorder = Recorder()
        trainer = small(
            env=Bandit,
            width=3,
            actions=3,
            steps=32,
            loss=[ClippedSurrogateLoss(), ValueLoss(), *losses],
            optimizer=partial(torch.optim.Adam, lr=3e-2),
            callbacks=[recorder],
        )
        trainer.train(iterations=8)
        entropies.append(recorder.rows[-1]["entropy"])
    # The maximum is ln 3 = 1.0986.
    assert entropies[0] < 0.9 < 1.05 < entropies[1]


def test_one_layer_down_every_piece_is_given_by_hand():
    recipe = recipes.ppo()
    by_hand = Trainer(
        mlp(2, 8, 2, seed=1),
        StepSampler(Quitting, 2, 8),
        advantages=GAE(0.99, 0.95),
        loss=[ClippedSurrogateLoss(0.2), ValueLoss(0.5)],
        reduction="step_mean",
        plan=MinibatchPlan(4, 64),
        optimizer=recipe.optimizer,
        critic=Critic(mlp(2, 64, 64, 1, seed=0)),
        groups_per_step=2,
        max_grad_norm=0.5,
    )
    named = small(env=Quitting)
    for trainer in (by_hand, named):
        trainer.train(iterations=2)
    assert_same_parameters(parameters_of(by_hand.policy), parameters_of(named.policy))


@pytest.mark.parametrize("arguments", [{"num_envs": 0}, {"steps": 0}])
def test_none_at_all_is_not_the_default(arguments):
    with pytest.raises(ValueError, match=r"num_envs=\d+ and steps=\d+ must be >= 1"):
        PPOTrainer(mlp(1, 2), Counting, **arguments)


def test_a_minibatch_of_one_step_leaves_everything_finite():
    # 17 steps in minibatches of 16: the last one is a single step, whose standard deviation would be 0 / 0.
    trainer = small(env=lambda: Counting(5), num_envs=1, steps=17, plan=MinibatchPlan(epochs=2, size=16))
    trainer.train(iterations=2)
    assert all(bool(value.isfinite().all()) for value in parameters_of(trainer.policy).values())
