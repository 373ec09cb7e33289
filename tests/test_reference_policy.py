import dataclasses
import json

import pytest
import torch
from environments import Bandit, Quitting
from gymnasium.spaces import Discrete
from helpers import Constant, assert_same_parameters, make_batch, parameters_of
from torch import nn

from grpolib import (
    K1,
    K2,
    K3,
    Callback,
    ClippedSurrogateLoss,
    GroupZScore,
    GRPOTrainer,
    MinibatchPlan,
    Recipe,
    ReferencePolicy,
    StepInputs,
    as_policy,
    mlp,
    recipes,
)

PLAN = MinibatchPlan(epochs=1, size=None)


def policy_of(*logits):
    return as_policy(Constant(*logits), Discrete(len(logits)))


def batch_of_actions(*actions):
    inputs = StepInputs(torch.zeros(len(actions), 1), torch.tensor(actions))
    return make_batch((len(actions),), inputs=inputs, log_probs=torch.full((len(actions),), 0.5).log())


def trainer_of(module, **pieces):
    settings = {"recipe": recipes.grpo(), "group_size": 4, "groups_per_step": 2, "plan": PLAN}
    return GRPOTrainer(module, Bandit, **{**settings, **pieces})


class Watch(Callback):
    """Keeps the trained and the reference parameters after each iteration."""

    def __init__(self):
        self.trained, self.reference = [], []

    def on_iteration_end(self, trainer, metrics):
        self.trained.append(parameters_of(trainer.policy))
        self.reference.append(parameters_of(trainer.reference.policy))


# A frozen copy.


def test_the_reference_is_a_copy_that_training_does_not_touch():
    watch = Watch()
    module = mlp(3, 3)
    start = parameters_of(as_policy(module, Discrete(3)))
    trainer_of(module, reference=ReferencePolicy(), callbacks=[watch]).train(iterations=3)
    assert not torch.equal(watch.trained[-1]["module.0.weight"], start["module.0.weight"])
    for after in watch.reference:
        assert_same_parameters(after, start)


def test_the_reference_takes_no_gradient_and_stays_in_evaluation_mode():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    trainer = trainer_of(module)
    module.train()
    trainer.policy.train()
    reference = trainer.reference.policy
    assert not any(part.training for part in reference.modules())
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert all(parameter.requires_grad for parameter in module.parameters())
    trainer.train(iterations=1)
    assert not any(part.training for part in reference.modules())
    assert all(parameter.grad is None for parameter in reference.parameters())


def test_a_given_reference_is_used_and_copied():
    frozen = policy_of(2.0, 0.0, 0.0)
    frozen.train()
    before = parameters_of(frozen)
    reference = ReferencePolicy(policy=frozen, refresh_every=1)
    trainer = trainer_of(mlp(3, 3), reference=reference)
    assert_same_parameters(parameters_of(trainer.reference.policy), before)
    assert trainer.reference.policy is not frozen
    assert frozen.training
    assert not any(part.training for part in trainer.reference.policy.modules())
    assert all(parameter.requires_grad for parameter in frozen.parameters())


def test_starting_leaves_the_receiver_as_it_was():
    reference = ReferencePolicy(refresh_every=3, mix=0.5, penalty=K1(0.2))
    policy = policy_of(0.0, 1.0)
    started = reference.started_from(policy)
    assert reference.policy is None
    assert started.policy is not policy
    assert dataclasses.replace(started, policy=None) == reference


# Annotating.


def test_reference_log_probabilities_are_those_of_the_frozen_policy():
    policy = policy_of(0.0, 0.0)
    started = ReferencePolicy().started_from(policy)
    with torch.no_grad():
        policy.module.output.copy_(torch.tensor([5.0, -5.0]))
    batch = batch_of_actions(0, 1, 1)
    annotated = started.annotate(batch)
    torch.testing.assert_close(annotated.reference_log_probs, torch.full((3,), 0.5).log())
    assert not annotated.reference_log_probs.requires_grad
    assert annotated.penalties is None
    assert batch.reference_log_probs is None


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        # log pi - log ref = ln(1/2) - ln(3/4) = -0.405465 for action 0, ln(1/2) - ln(1/4) = 0.693147 for action 1.
        (K1(0.5), [-0.202733, 0.346574]),
        (K2(0.5), [0.041100, 0.120113]),  # 0.25 x the squares
        (K3(0.5), [0.047267, 0.096574]),  # 0.5 x (exp(d) - d - 1) with d = 0.405465, -0.693147
    ],
    ids=repr,
)
def test_penalties_are_coefficient_times_the_estimate_from_the_sampling_policy(penalty, expected):
    frozen = policy_of(torch.tensor(3.0).log().item(), 0.0)
    batch = batch_of_actions(0, 1)
    batch.log_probs.requires_grad_()
    annotated = ReferencePolicy(penalty=penalty, policy=frozen).annotate(batch)
    torch.testing.assert_close(annotated.penalties, torch.tensor(expected), atol=1e-6, rtol=1e-5)
    assert not annotated.penalties.requires_grad
    assert annotated.penalties.grad_fn is None
    assert torch.equal(annotated.rewards, batch.rewards)
    assert annotated.reference_log_probs is not None


def test_annotating_before_the_start_is_refused():
    with pytest.raises(ValueError, match=r"no policy yet.*started_from"):
        ReferencePolicy().annotate(batch_of_actions(0))


def test_a_penalty_reaches_the_advantages():
    # Equal rewards, so that only the penalties tell the members apart.
    seen = []

    def advantages(batch):
        seen.append(batch)
        return GroupZScore()(batch)

    reference = ReferencePolicy(penalty=K1(0.5), policy=policy_of(1.0, 0.0, -1.0))
    trainer = trainer_of(mlp(3, 3), loss=[ClippedSurrogateLoss()], reference=reference, advantages=advantages)
    trainer.train(iterations=1)
    (batch,) = seen
    expected = 0.5 * (batch.log_probs - batch.reference_log_probs)
    torch.testing.assert_close(batch.penalties, expected)
    assert bool(batch.penalties.any())


# Refreshing.


def test_the_reference_is_refreshed_at_multiples_of_refresh_every_only():
    watch = Watch()
    trainer_of(mlp(3, 3), reference=ReferencePolicy(refresh_every=3), callbacks=[watch]).train(iterations=7)
    weights = [reference["module.0.weight"] for reference in watch.reference]
    for iteration in range(2, 8):
        changed = not torch.equal(weights[iteration - 1], weights[iteration - 2])
        assert changed == (iteration % 3 == 0), iteration
    assert_same_parameters(watch.reference[2], watch.trained[2])
    assert_same_parameters(watch.reference[5], watch.trained[5])
    assert_same_parameters(watch.reference[6], watch.trained[5])


@pytest.mark.parametrize(("iteration", "expected"), [(1, 0.0), (2, 4.0), (3, 0.0), (4, 4.0)])
def test_updates_fall_on_multiples(iteration, expected):
    started = ReferencePolicy(refresh_every=2).started_from(policy_of(0.0, 0.0))
    started.update(policy_of(4.0, 4.0), iteration)
    assert started.policy.module.output.tolist() == [expected, expected]


def test_without_refresh_every_nothing_is_refreshed():
    started = ReferencePolicy().started_from(policy_of(0.0, 0.0))
    for iteration in range(12):
        started.update(policy_of(4.0, 4.0), iteration)
    assert started.policy.module.output.tolist() == [0.0, 0.0]


def test_mixing_moves_the_reference_by_a_share():
    started = ReferencePolicy(refresh_every=1, mix=0.25).started_from(policy_of(0.0, 8.0))
    trained = policy_of(4.0, 0.0)
    started.update(trained, 1)
    assert started.policy.module.output.tolist() == [1.0, 6.0]  # 0.25 x 4, 8 + 0.25 x (0 - 8)
    started.update(trained, 2)
    assert started.policy.module.output.tolist() == [1.75, 4.5]
    assert trained.module.output.tolist() == [4.0, 0.0]
    assert not started.policy.module.output.requires_grad


def test_tied_parameters_are_mixed_once():
    def tied(value):
        first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        nn.init.constant_(first.weight, value)
        second.weight = first.weight
        return as_policy(nn.Sequential(first, second), Discrete(2))

    started = ReferencePolicy(refresh_every=1, mix=0.5).started_from(tied(0.0))
    started.update(tied(4.0), 1)
    assert started.policy.module[0].weight.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_buffers_follow_whatever_their_type():
    def counting(value):
        module = Constant(0.0, 0.0)
        module.register_buffer("scale", torch.tensor(float(value)))
        module.register_buffer("count", torch.tensor(value))
        return as_policy(module, Discrete(2))

    started = ReferencePolicy(refresh_every=1, mix=0.5).started_from(counting(2))
    started.update(counting(4), 1)
    assert started.policy.module.scale == 3.0
    assert started.policy.module.count == 4


# Recipes and references.


def test_a_recipe_s_reference_is_never_changed_and_never_shared():
    recipe = dataclasses.replace(recipes.grpo(), group_size=4, groups_per_step=2, plan=PLAN)
    first = GRPOTrainer(mlp(3, 3, seed=0), Bandit, recipe=recipe)
    second = GRPOTrainer(mlp(3, 3, seed=1), Bandit, recipe=recipe)
    assert recipe.reference.policy is None
    assert first.reference.policy is not second.reference.policy
    before = parameters_of(second.reference.policy)
    first.train(iterations=10)
    assert_same_parameters(parameters_of(first.reference.policy), parameters_of(first.policy))
    assert_same_parameters(parameters_of(second.reference.policy), before)
    assert recipe.reference.policy is None


def test_no_kl_term_no_copy():
    trainer = trainer_of(mlp(3, 3), recipe=recipes.critic_free())
    assert trainer.reference is None
    metrics = trainer.step()
    assert "kl_reference" not in metrics


@pytest.mark.parametrize("term", [K1(0.1), K2(0.1), K3(0.1)], ids=repr)
def test_a_kl_term_without_a_reference_is_refused_at_once(term):
    with pytest.raises(
        ValueError, match=r"K\d\(coefficient=0\.1.*\) is a KL term without a reference.*ReferencePolicy"
    ):
        trainer_of(mlp(3, 3), recipe=recipes.critic_free(), loss=[ClippedSurrogateLoss(), term])
    with pytest.raises(ValueError, match=r"KL term without a reference"):
        Recipe(advantages=GroupZScore(), loss=[term])


def test_a_reference_that_nothing_reads_is_refused_at_once():
    message = r"reference was given but no KL term.*K3\(coefficient\).*penalty=K1.*set reference=None"
    with pytest.raises(ValueError, match=message):
        trainer_of(mlp(3, 3), recipe=recipes.critic_free(), reference=ReferencePolicy(refresh_every=10))
    with pytest.raises(ValueError, match=message):
        trainer_of(mlp(3, 3), recipe=recipes.grpo(), loss=[ClippedSurrogateLoss()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refresh_every": 0}, r"refresh_every is 0.*>= 1.*None for never"),
        ({"refresh_every": -1}, r"refresh_every is -1"),
        ({"refresh_every": 2.5}, r"refresh_every is 2\.5"),
        ({"mix": 0.0}, r"mix is 0\.0.*\(0, 1\]"),
        ({"mix": 1.5}, r"mix is 1\.5"),
        ({"mix": float("nan")}, r"mix is nan"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_references_that_cannot_be(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ReferencePolicy(**arguments)


class KnowsItsReference(nn.Module):
    """A policy that makes its reference itself, which has no parameters."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.frozen = as_policy(nn.Flatten(), Discrete(2))

    def evaluate(self, inputs):
        return self.frozen.evaluate(inputs)

    def as_reference(self):
        return self.frozen


def test_a_policy_that_makes_its_reference_is_asked_for_it():
    policy = KnowsItsReference()
    assert ReferencePolicy().started_from(policy).policy is policy.frozen
    with pytest.raises(ValueError, match=r"refresh_every=3 and the reference has no parameters of its own"):
        ReferencePolicy(refresh_every=3).started_from(policy)


def test_a_given_module_is_adapted_as_the_trained_one_was():
    module = Constant(2.0, 0.0)
    batch = batch_of_actions(0, 1, 1)
    given, adapted = (
        ReferencePolicy(policy=policy).started_from(policy_of(0.0, 1.0)).annotate(batch).reference_log_probs
        for policy in (as_policy(module, Discrete(2)), module)
    )
    assert torch.equal(given, adapted)
    torch.testing.assert_close(adapted, torch.tensor([2.0, 0.0]).log_softmax(0)[torch.tensor([0, 1, 1])])


def test_a_module_that_nothing_shows_how_to_adapt_is_refused():
    class Own(nn.Module):
        def evaluate(self, inputs): ...

    with pytest.raises(TypeError, match=r"is a Constant, which has no evaluate.*as the trained Own is one"):
        ReferencePolicy(policy=Constant(0.0)).started_from(Own())


def test_the_frozen_policy_stays_out_of_its_description():
    text = repr(ReferencePolicy(policy=policy_of(0.0, 1.0)))
    assert "ReferencePolicy(refresh_every=None" in text
    assert "Constant" not in text
    assert json.dumps(text)


# The first update.


@pytest.mark.parametrize("switched_on_again", [False, True])
def test_with_dropout_the_first_update_has_no_kl_and_ratio_one(switched_on_again):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2))
    settings = {"recipe": recipes.grpo(), "group_size": 4, "groups_per_step": 2, "plan": PLAN}
    trainer = GRPOTrainer(module, Quitting, **settings)
    if switched_on_again:
        module.train()
    metrics = trainer.step()
    assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["kl_old_k3"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0


def test_later_updates_see_a_kl():
    trainer = trainer_of(mlp(3, 3), plan=MinibatchPlan(epochs=4, size=4))
    metrics = [trainer.step() for _ in range(3)]
    assert metrics[0]["kl_reference"] > 0
    assert metrics[2]["kl_reference"] > metrics[0]["kl_reference"]
