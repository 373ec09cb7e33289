"""A critic's values, generalised advantages through a batch, and the loss that trains the critic."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from environments import Counting, Quitting
from gymnasium.wrappers import TransformReward
from helpers import Gives, bools, global_generators_untouched, make_batch, make_minibatch, parameters_of
from torch import nn

from grpolib import (
    GAE,
    ClippedSurrogateLoss,
    Critic,
    Evaluation,
    GroupSampler,
    MinibatchPlan,
    PPOTrainer,
    ScaledRewards,
    StepInputs,
    StepSampler,
    TimestepLeaveOneOut,
    Trainer,
    ValueLoss,
    as_policy,
    mlp,
    recipes,
)
from grpolib.recipes import Recipe

NAN = math.nan


def looked_up(**values):
    """A critic that knows the value of each observation by heart; anything else fails."""
    table = {float(name.strip("s")): value for name, value in values.items()}
    return Critic(Gives(lambda observations: torch.tensor([table[x] for x in observations[:, 0].tolist()])))


def walk(rewards, *, lengths=None, final=None, **fields):
    """A batch that observes 0, 1, 2, ... and, after the last step of each episode, `final`."""
    lengths = [len(rewards)] if lengths is None else lengths
    final_inputs = torch.tensor(final, dtype=torch.float32).unsqueeze(1)
    return make_batch(
        lengths, rewards=torch.tensor(rewards), final_inputs=final_inputs, group_ids=range(len(lengths)), **fields
    )


# The values of a batch.


def test_values_are_of_the_observations_and_final_values_of_what_came_after():
    batch = walk([1.0, 1.0, 1.0], lengths=[2, 1], final=[7.0, 9.0])
    annotated = looked_up(s0=0.5, s1=0.6, s2=0.7, s7=70.0, s9=90.0).annotate(batch)
    torch.testing.assert_close(annotated.values, torch.tensor([0.5, 0.6, 0.7]))
    torch.testing.assert_close(annotated.final_values, torch.tensor([70.0, 90.0]))
    assert batch.values is None
    assert annotated.inputs is batch.inputs


def test_annotation_has_no_gradient_and_a_call_has():
    critic = Critic(mlp(1, 8, 1))
    annotated = critic.annotate(walk([1.0], final=[1.0]))
    assert not annotated.values.requires_grad
    assert not annotated.final_values.requires_grad
    critic(annotated.inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in critic.module.parameters())


def test_a_column_and_a_row_are_the_same_values():
    observations = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    inputs = StepInputs(observations, torch.zeros(5))
    column, row = Critic(Gives(lambda x: x[:, :1])), Critic(Gives(lambda x: x[:, 0]))
    assert column(inputs).shape == (5,)
    assert torch.equal(column(inputs), row(inputs))


@pytest.mark.parametrize("shape", [(5, 2), (1, 5), (5, 1, 1), (1,), (), (6,)])
def test_any_other_shape_raises(shape):
    critic = Critic(Gives(lambda _: torch.zeros(shape)))
    with pytest.raises(ValueError, match=r"the critic gave .* for 5 observations: expected one value each"):
        critic(StepInputs(torch.zeros(5, 3), torch.zeros(5)))


def test_one_observation_may_have_one_value_in_a_column():
    assert Critic(mlp(3, 1))(StepInputs(torch.ones(1, 3), torch.zeros(1))).shape == (1,)


def test_a_batch_without_final_observations_cannot_be_bootstrapped():
    with pytest.raises(ValueError, match=r"final_inputs.*the sampler gave none"):
        Critic(mlp(1, 1)).annotate(make_batch())


# Generalised advantages: worked numbers.

TIME_LIMIT = {"s0": 0.5, "s1": 0.6, "s2": 0.7, "s8": 0.8}


@pytest.mark.parametrize(
    ("terminated", "final", "expected"),
    [
        # discount 0.9, lambda 0.8. Cut: 1 + 0.9 * 0.8 - 0.7 = 1.02; 1 + 0.9 * 0.7 - 0.6 + 0.72 * 1.02 = 1.7644;
        # 1 + 0.9 * 0.6 - 0.5 + 0.72 * 1.7644 = 2.310368.
        (False, 8.0, [2.310368, 1.7644, 1.02]),
        # Ended: 1 - 0.7 = 0.3, and the value of what came after is not read.
        (True, 8.0, [1.93712, 1.246, 0.3]),
        # What the other observations would give: the next episode's first one, and the last one acted on.
        (False, 0.0, [2.1704, 1.57, 0.75]),
        (False, 2.0, [2.263712, 1.6996, 0.93]),
    ],
)
def test_an_episode_that_was_cut_is_bootstrapped_from_its_final_observation(terminated, final, expected):
    batch = looked_up(**TIME_LIMIT).annotate(walk([1.0] * 3, final=[final], terminated=bools(terminated)))
    estimator = GAE(discount=0.9, gae_lambda=0.8, normalize=False)
    torch.testing.assert_close(estimator(batch), torch.tensor(expected))
    # Targets: advantages plus values. The rewards stay as they came.
    targets = torch.tensor(expected) + torch.tensor([0.5, 0.6, 0.7])
    torch.testing.assert_close(estimator.returns(batch), targets)
    assert batch.rewards.tolist() == [1.0, 1.0, 1.0]
    assert batch.episode_returns.tolist() == [3.0]


@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [
        # 2 - 0.4 = 1.6 ends the first episode; 3 + 0.9 * 0.2 - 0.3 + 0.72 * 3.89 = 5.6808; 4 + 0.9 * 0.1 - 0.2 = 3.89.
        (0.8, [2.012, 1.6, 5.6808, 3.89]),
        (0.0, [0.86, 1.6, 2.88, 3.89]),
        # The discounted return minus the value: 1 + 0.9 * 2 - 0.5; 2 - 0.4; 3 + 0.9 * 4 + 0.81 * 0.1 - 0.3; 3.89.
        (1.0, [2.3, 1.6, 6.381, 3.89]),
    ],
)
def test_an_end_cuts_after_its_own_step(gae_lambda, expected):
    batch = walk([1.0, 2.0, 3.0, 4.0], lengths=[2, 2], final=[5.0, 6.0], terminated=bools(True, False))
    batch = looked_up(s0=0.5, s1=0.4, s2=0.3, s3=0.2, s5=99.0, s6=0.1).annotate(batch)
    estimator = GAE(discount=0.9, gae_lambda=gae_lambda, normalize=False)
    torch.testing.assert_close(estimator(batch), torch.tensor(expected))


def test_a_time_limit_and_an_end_at_once_is_an_end():
    sampler = StepSampler(lambda: Counting(3, truncates=True, terminates=True), num_envs=1, steps=3)
    batch = sampler.sample(as_policy(mlp(2, 2), sampler.action_space), 1, np.random.SeedSequence(0))
    assert batch.terminated.tolist() == [True]
    # A critic that says 5 everywhere: 1 + 5 - 5 on the first steps, 1 - 5 on the last.
    annotated = Critic(Gives(lambda x: torch.full((len(x),), 5.0))).annotate(batch)
    assert GAE(1.0, 0.0, normalize=False)(annotated).tolist() == [1.0, 1.0, -4.0]


def test_penalties_are_taken_from_the_rewards():
    # (1 - 0.25) + (2 - 0.5) to go, without discount and values.
    batch = make_batch(
        (2,),
        rewards=torch.tensor([1.0, 2.0]),
        penalties=torch.tensor([0.25, 0.5]),
        values=torch.zeros(2),
        final_values=torch.zeros(1),
    )
    estimator = GAE(1.0, 1.0, normalize=False)
    assert estimator(batch).tolist() == [2.25, 1.5]
    assert estimator.returns(batch).tolist() == [2.25, 1.5]


# The unit of the rewards.


def trained_on(factor, critic):
    def env():
        return TransformReward(Quitting(5), lambda reward: factor * reward)

    trainer = PPOTrainer(mlp(2, 8, 2), env, num_envs=2, steps=16, critic=Critic(critic), max_grad_norm=100.0)
    metrics = [trainer.step() for _ in range(3)]
    return trainer, metrics


def test_the_unit_of_the_rewards_does_not_matter():
    (one, plain), (other, large) = (trained_on(factor, ScaledRewards(mlp(2, 8, 1))) for factor in (1.0, 1000.0))
    for name, value in parameters_of(one.policy).items():
        torch.testing.assert_close(parameters_of(other.policy)[name], value, rtol=1e-4, atol=1e-6)
    assert [row["value_loss"] for row in large] == pytest.approx([row["value_loss"] for row in plain], rel=1e-3)
    # Logs show what the environment gave.
    for row, thousandfold in zip(plain, large, strict=True):
        assert thousandfold["return_mean"] == pytest.approx(1000 * row["return_mean"])
    unscaled, _ = trained_on(1000.0, mlp(2, 8, 1))
    assert any(
        not torch.allclose(value, parameters_of(unscaled.policy)[name], rtol=1e-3)
        for name, value in parameters_of(one.policy).items()
    )


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far():
    critic = Critic(ScaledRewards(mlp(1, 1), discount=0.5))
    seen = []
    for rewards in ([1.0, 2.0, 4.0], [8.0, 0.0, 1.0]):
        batch = critic.annotate(make_batch((2, 1), rewards=torch.tensor(rewards), final_inputs=torch.zeros(2, 1)))
        seen += [rewards[0] + rewards[1] / 2, rewards[1], rewards[2]]
        torch.testing.assert_close(batch.reward_factors, torch.full((3,), 1 / np.std(seen)).float())
        torch.testing.assert_close(batch.penalized_rewards, batch.rewards / float(np.std(seen)))
        assert batch.rewards.tolist() == rewards


# Normalisation.


def evaluated(lengths, seed=0, **fields):
    rng = torch.Generator().manual_seed(seed)
    steps = sum(lengths)
    return make_batch(
        lengths,
        group_ids=range(len(lengths)),
        rewards=torch.randn(steps, generator=rng),
        values=torch.randn(steps, generator=rng),
        final_values=torch.randn(len(lengths), generator=rng),
        terminated=torch.rand(len(lengths), generator=rng) < 0.5,
        **fields,
    )


def test_normalised_advantages_are_centred_and_divided_by_the_std_of_all_steps():
    batch = evaluated([3, 1, 5])
    raw = GAE(normalize=False)(batch).double()
    expected = (raw - raw.mean()) / raw.var(correction=0).sqrt()
    torch.testing.assert_close(GAE()(batch), expected.float(), rtol=1e-5, atol=1e-6)


def test_returns_are_never_normalised():
    batch = evaluated([3, 1, 5])
    expected = GAE(normalize=False)(batch) + batch.values
    for normalize in (True, False):
        torch.testing.assert_close(GAE(normalize=normalize).returns(batch), expected)


def test_normalisation_reads_the_counted_steps_alone():
    mask = bools(True, False, True, True, True, False, True, True, True)
    batch = evaluated([3, 1, 5], loss_mask=mask, scored=bools(True, False, True))
    advantages = GAE()(batch)[batch.counted].double()
    assert batch.counted.tolist() == [True, False, True, False, True, False, True, True, True]
    assert float(advantages.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(advantages.var(correction=0)) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3, 0.7, 1 / 3, 5.1])
@pytest.mark.parametrize("steps", [1, 2, 7, 33, 1000])
def test_equal_advantages_have_nothing_to_compare(value, steps):
    nothing = torch.zeros(steps)
    batch = make_batch([1] * steps, rewards=torch.full((steps,), value), values=nothing, final_values=nothing)
    assert GAE()(batch).tolist() == [0.0] * steps


@pytest.mark.parametrize("normalize", [True, False])
def test_an_unscored_episode_gets_zero_and_leaves_the_others_alone(normalize):
    without = evaluated([3, 5])
    unscored = {"rewards": [NAN, 1.0], "values": [NAN, math.inf], "final_values": [NAN]}
    fields = {name: torch.cat([getattr(without, name), torch.tensor(unscored[name])]) for name in unscored}
    fields["terminated"] = torch.cat([without.terminated, bools(False)])
    batch = make_batch([3, 5, 2], group_ids=[0, 1, 2], scored=bools(True, True, False), **fields)
    advantages = GAE(normalize=normalize)(batch)
    torch.testing.assert_close(advantages[:8], GAE(normalize=normalize)(without))
    assert advantages[8:].tolist() == [0.0, 0.0]


def test_a_batch_in_which_nothing_counts_has_advantages_without_a_warning():
    batch = evaluated([2, 1], scored=bools(False, False))
    assert GAE()(batch).tolist() == [0.0, 0.0, 0.0]


def test_advantages_carry_no_gradient():
    batch = dataclasses.replace(evaluated([2, 1]), values=torch.zeros(3, requires_grad=True))
    assert not GAE()(batch).requires_grad


@pytest.mark.parametrize("name", ["discount", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN])
def test_fractions_out_of_range_raise(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        GAE(**{name: value})(evaluated([2, 1]))


@pytest.mark.parametrize("missing", ["values", "final_values"])
def test_a_batch_without_values_names_the_way_out(missing):
    batch = dataclasses.replace(evaluated([2, 1]), **{missing: None})
    with pytest.raises(ValueError, match=r"critic=Critic\(module\)"):
        GAE()(batch)
    with pytest.raises(ValueError, match=r"critic=Critic\(module\)"):
        GAE(normalize=False).returns(dataclasses.replace(batch, values=None))


# The loss of the values.


def evaluation(values, **fields):
    log_probs = torch.zeros(len(values))
    return Evaluation(log_probs, log_probs, values=torch.as_tensor(values), **fields)


def test_the_weighted_squared_error():
    # 0.5 * (0.5 * 1^2 + 0.25 * 2^2) and its gradient 2 * 0.5 * weight * error.
    values = torch.tensor([1.0, 3.0], requires_grad=True)
    part = make_minibatch([0.0, 0.0], weights=[0.5, 0.25], returns=torch.tensor([2.0, 1.0]))
    output = ValueLoss(0.5)(evaluation(values), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(0.75)
    assert values.grad.tolist() == pytest.approx([-0.5, 0.5])
    # The metric has no coefficient, so that runs with different ones can be compared.
    assert output.metrics["value_loss"].item() == pytest.approx(1.5)
    assert not output.metrics["value_loss"].requires_grad


def test_rows_that_do_not_count_may_hold_anything():
    values = torch.tensor([1.0, NAN], requires_grad=True)
    part = make_minibatch([0.0, 0.0], weights=[1.0, 0.0], returns=torch.tensor([3.0, math.inf]))
    output = ValueLoss(1.0)(evaluation(values), part)
    output.loss.backward()
    assert output.loss.item() == 4.0
    assert values.grad.tolist() == [-4.0, 0.0]


@pytest.mark.parametrize("coefficient", [0.0, -0.5, NAN])
def test_a_coefficient_that_is_not_positive_raises(coefficient):
    with pytest.raises(ValueError, match="coefficient must be > 0"):
        ValueLoss(coefficient)


@pytest.mark.parametrize("missing", ["values", "returns"])
def test_values_and_returns_are_both_needed(missing):
    returns = None if missing == "returns" else torch.zeros(2)
    scores = Evaluation(torch.zeros(2), torch.zeros(2)) if missing == "values" else evaluation([0.0, 0.0])
    with pytest.raises(ValueError, match=r"critic=Critic\(module\) and an estimator with returns"):
        ValueLoss()(scores, make_minibatch([0.0, 0.0], returns=returns))


def test_the_loss_pulls_the_values_to_the_returns():
    # One state of which the returns are 1 and 3: the mean is the best constant.
    critic = Critic(Gives(lambda x: critic.module.idle.expand(len(x))))
    optimizer = torch.optim.SGD(critic.module.parameters(), lr=0.5)
    part = make_minibatch([0.0, 0.0], returns=torch.tensor([1.0, 3.0]))
    for _ in range(20):
        optimizer.zero_grad()
        scores = evaluation([0.0, 0.0])
        ValueLoss(0.5)(dataclasses.replace(scores, values=critic(part.inputs)), part).loss.backward()
        optimizer.step()
    assert critic.module.idle.item() == pytest.approx(2.0, abs=1e-5)


# A critic where it is needed, and only there.


def trainer(recipe, **pieces):
    return Trainer(mlp(2, 2), StepSampler(Counting, 2, 4), **{**recipe.pieces(), "groups_per_step": 2, **pieces})


@pytest.mark.parametrize(
    "pieces",
    [
        {"advantages": GAE(), "loss": [ClippedSurrogateLoss()]},
        {"advantages": GAE(), "loss": [ClippedSurrogateLoss(), ValueLoss()]},
    ],
)
def test_a_critic_that_is_needed_and_missing_raises(pieces):
    with pytest.raises(ValueError, match=r"give critic=Critic\(module\)"):
        trainer(Recipe(**pieces))


@pytest.mark.parametrize("recipe", [recipes.grpo, recipes.critic_free])
def test_a_critic_that_nothing_reads_raises(recipe):
    with pytest.raises(ValueError, match="nothing reads it"):
        recipe().replaced(critic=Critic(mlp(2, 1)))


def test_a_value_loss_whose_estimator_has_no_targets_raises_at_once():
    with pytest.raises(ValueError, match="returns"):
        trainer(
            Recipe(advantages=TimestepLeaveOneOut(), loss=[ClippedSurrogateLoss(), ValueLoss()]), critic=critic_of(2)
        )


def critic_of(width):
    return Critic(mlp(width, 8, 1))


def test_policy_and_critic_are_trained_together():
    critic, policy = critic_of(2), mlp(2, 2)
    before = [p.detach().clone() for p in (*policy.parameters(), *critic.module.parameters())]
    ppo = PPOTrainer(policy, Counting, num_envs=2, steps=8, critic=critic)
    assert sum(len(group["params"]) for group in ppo.optimizer.param_groups) == len(before)
    ppo.train(iterations=1)
    after = [*policy.parameters(), *critic.module.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


class Spy:
    """A value loss that keeps the targets it was given."""

    needs_critic = True

    def __init__(self):
        self.targets = []

    def __call__(self, evaluation, minibatch, /):
        self.targets += minibatch.returns.tolist()
        return ValueLoss()(evaluation, minibatch)


def test_values_are_computed_once_before_the_first_update():
    # Four updates with a large learning rate; every target is still that of the critic as it was.
    spy = Spy()
    pieces = {
        "loss": [ClippedSurrogateLoss(), spy],
        "critic": critic_of(2),
        "plan": MinibatchPlan(epochs=1, size=2),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    }
    PPOTrainer(mlp(2, 2), Counting, num_envs=2, steps=4, **pieces).train(iterations=1)
    sampler = StepSampler(Counting, num_envs=2, steps=4)
    policy = as_policy(mlp(2, 2), sampler.action_space)
    batch = sampler.sample(policy, 2, np.random.SeedSequence(0, spawn_key=(1,)))
    expected = GAE().returns(critic_of(2).annotate(batch))
    assert set(spy.targets) == set(expected.tolist())


@pytest.mark.usefixtures("without_shape_hook")
def test_dropout_stays_off_in_the_critic_too():
    module = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    with global_generators_untouched():
        ppo = PPOTrainer(mlp(2, 2), Counting, num_envs=2, steps=4, critic=Critic(module))
        ppo.train(iterations=1)
    assert not module.training


def test_a_critic_may_read_groups_too():
    # Whole episodes of a GroupSampler have final observations as well.
    pieces = recipes.ppo().pieces() | {"critic": critic_of(2), "groups_per_step": 2}
    grouped = Trainer(mlp(2, 2), GroupSampler(Counting, 2), **pieces)
    grouped.train(iterations=1)
    assert grouped.num_steps == 12


def test_a_critic_s_last_values_are_finite_on_a_batch_of_one_step():
    batch = Critic(mlp(1, 1)).annotate(walk([2.0], final=[3.0], terminated=bools(False)))
    assert GAE()(batch).tolist() == [0.0]
