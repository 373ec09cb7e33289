import dataclasses
from functools import partial

import pytest
import torch
from environments import Bandit, Counting
from helpers import Constant

from grpolib import (
    K1,
    K3,
    ClippedSurrogateLoss,
    GroupSampler,
    GroupZScore,
    GRPOTrainer,
    LearningRate,
    Linear,
    LossOutput,
    MinibatchPlan,
    Recipe,
    ReferencePolicy,
    TimestepLeaveOneOut,
    Trainer,
    mlp,
    recipes,
)

KNOWN = [field.name for field in dataclasses.fields(Recipe)]


def trainer_of(**keywords):
    return GRPOTrainer(mlp(3, 3), Bandit, **{"group_size": 2, **keywords})


# The named recipes.


def test_the_published_grpo():
    recipe = recipes.grpo()
    assert recipe.advantages == GroupZScore(epsilon=1e-4, correction=0, scale="group")
    assert list(recipe.loss) == [ClippedSurrogateLoss(clip_epsilon=0.2), K3(0.04)]
    assert recipe.reduction == "episode_mean"
    assert recipe.plan == MinibatchPlan(epochs=4, size=64, by="step")
    assert recipe.reference == ReferencePolicy(refresh_every=10, mix=1.0, penalty=None)
    assert (recipe.group_size, recipe.groups_per_step, recipe.max_grad_norm) == (16, 4, 0.5)
    assert list(recipe.schedules) == []


def test_critic_free():
    recipe = recipes.critic_free()
    assert recipe.advantages == TimestepLeaveOneOut(discount=0.99, normalize="timestep")
    assert recipe.reduction == "step_mean"
    assert list(recipe.loss) == [ClippedSurrogateLoss()]
    assert recipe.reference is None
    assert recipe.plan == MinibatchPlan(epochs=10, size=256, by="step")
    assert (recipe.group_size, recipe.groups_per_step, recipe.max_grad_norm) == (8, 4, 0.5)
    assert recipe.schedules == ()
    assert recipes.critic_free(500).schedules == (LearningRate(Linear(1e-3, 0.0, total_steps=500)),)


@pytest.mark.parametrize(("recipe", "rate"), [(recipes.grpo(), 3e-4), (recipes.critic_free(), 1e-3)])
def test_the_optimizer(recipe, rate):
    optimizer = recipe.optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.Adam)
    assert not isinstance(optimizer, torch.optim.AdamW)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["eps"], group["weight_decay"]) == (rate, 1e-5, 0)


def test_a_new_call_gives_an_equal_recipe():
    assert recipes.grpo() == recipes.grpo()
    assert recipes.grpo() != recipes.critic_free()


# Single pieces.


def test_grpo_is_the_default_recipe():
    assert trainer_of().recipe == dataclasses.replace(recipes.grpo(), group_size=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("advantages", GroupZScore(scale="none")),
        ("reduction", "step_mean"),
        ("plan", MinibatchPlan(epochs=1, size=8)),
        ("groups_per_step", 7),
        ("max_grad_norm", 3.0),
        ("optimizer", partial(torch.optim.SGD, lr=0.5)),
        ("reference", ReferencePolicy(refresh_every=2)),
        ("loss", [ClippedSurrogateLoss(0.1), K3(1.0)]),
    ],
)
def test_a_single_piece_is_replaced_and_the_others_stay(name, value):
    recipe = recipes.grpo()
    trainer = trainer_of(recipe=recipe, **{name: value})
    assert getattr(trainer.recipe, name) == value
    assert trainer.recipe == dataclasses.replace(recipe, group_size=2, **{name: value})
    assert getattr(recipe, name) != value
    assert isinstance(trainer.optimizer, torch.optim.SGD) == (name == "optimizer")


def test_a_group_size_reaches_the_sampler():
    assert trainer_of(group_size=5).sampler.group_size == 5
    assert GRPOTrainer(mlp(3, 3), Bandit).sampler.group_size == 16


@pytest.mark.parametrize("make", [trainer_of, lambda **pieces: recipes.grpo().replaced(**pieces)])
def test_an_unknown_keyword_lists_the_known_ones(make):
    with pytest.raises(TypeError, match=r"unknown keyword 'learning_rate'; the pieces of a recipe are") as error:
        make(learning_rate=1e-3)
    assert all(name in str(error.value) for name in KNOWN)


def test_an_unknown_keyword_of_the_trainer_lists_the_known_ones():
    with pytest.raises(TypeError, match=r"unknown keyword 'advantage'; .*advantages"):
        Trainer(mlp(3, 3), GroupSampler(Bandit, 2), advantage=GroupZScore())


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("recipe", ["grpo", recipes.grpo, Recipe, {}])
def test_what_is_no_recipe_is_refused(recipe):
    with pytest.raises(TypeError, match=r"recipe is .*give a Recipe, for instance recipes\.critic_free\(\)"):
        trainer_of(recipe=recipe)


def test_a_ready_sampler_owns_its_group_size():
    sampler = GroupSampler(Bandit, 3)
    with pytest.raises(ValueError, match=r"group_size=4 beside a ready sampler"):
        GRPOTrainer(mlp(3, 3), sampler, group_size=4)
    trainer = GRPOTrainer(mlp(3, 3), sampler, recipe=recipes.grpo(), groups_per_step=1)
    assert trainer.step()["num_steps"] == 3
    assert trainer.sampler is sampler


# Pieces that do not fit.


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("pieces", "error", "message"),
    [
        ({"loss": []}, ValueError, r"loss is empty.*ClippedSurrogateLoss\(\)"),
        ({"groups_per_step": 0}, ValueError, r"groups_per_step=0 must be >= 1"),
        ({"groups_per_step": -1}, ValueError, r"groups_per_step=-1"),
        ({"max_grad_norm": 0.0}, ValueError, r"max_grad_norm=0\.0 > 0|max_grad_norm=0\.0.*> 0"),
        ({"max_grad_norm": float("nan")}, ValueError, r"max_grad_norm=nan"),
        ({"reduction": "mean"}, ValueError, r"reduction .*'mean'"),
        ({"loss": ClippedSurrogateLoss()}, TypeError, r"loss .*(list|sequence)"),
        ({"group_size": 1}, ValueError, r"group_size is 1.*>= 2"),
        ({"loss": [K3(0.1)], "reference": None}, ValueError, r"KL term without a reference"),
        ({"reference": ReferencePolicy()}, ValueError, r"no KL term reads it"),
    ],
)
def test_pieces_that_do_not_fit_fail_when_the_trainer_is_made(pieces, error, message):
    with pytest.raises(error, match=message):
        trainer_of(recipe=recipes.critic_free(), **pieces)


def test_a_penalty_is_a_kl_term():
    trainer = trainer_of(recipe=recipes.critic_free(), reference=ReferencePolicy(penalty=K1(0.1)))
    assert trainer.reference.penalty == K1(0.1)


def test_a_group_of_two_is_enough():
    assert trainer_of(group_size=2).step()["num_steps"] == 8


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipes.grpo().group_size = 3


# Plain functions as pieces.


def test_an_estimator_and_a_loss_of_one_s_own():
    seen = []

    def advantages(batch):
        seen.append(("advantages", batch.num_steps))
        return torch.linspace(-1, 1, batch.num_steps)

    def loss(evaluation, minibatch):
        seen.append(("loss", len(minibatch.weights)))
        value = -(evaluation.log_probs * minibatch.advantages * minibatch.weights).sum()
        return LossOutput(value, {"my_metric": value.detach() * 0 + 7.0})

    module = Constant(0.0, 0.0)
    trainer = GRPOTrainer(
        module,
        lambda: Counting(2),
        recipe=recipes.critic_free(),
        advantages=advantages,
        loss=[loss],
        group_size=3,
        groups_per_step=1,
        plan=MinibatchPlan(epochs=2, size=4),
    )
    metrics = trainer.step()
    assert seen == [("advantages", 6), ("loss", 4), ("loss", 2), ("loss", 4), ("loss", 2)]
    assert metrics["my_metric"] == 7.0
    assert bool(module.output.any())


def test_losses_are_summed():
    def constant(value):
        return lambda evaluation, minibatch: LossOutput(0 * evaluation.log_probs.sum() + value)

    assert trainer_of(recipe=recipes.critic_free(), loss=[constant(1.5), constant(0.25)]).step()["loss"] == 1.75


def test_the_learning_rate_is_the_optimizer_s():
    module = Constant(0.0, 0.0, 0.0)

    def pull(evaluation, minibatch):
        return LossOutput(evaluation.log_probs.sum() * 0 + module.output.sum())

    trainer = GRPOTrainer(
        module,
        Bandit,
        recipe=recipes.critic_free(),
        loss=[pull],
        group_size=2,
        groups_per_step=1,
        plan=MinibatchPlan(epochs=1, size=None),
        optimizer=partial(torch.optim.SGD, lr=0.5),
        max_grad_norm=100.0,
    )
    trainer.step()
    assert module.output.tolist() == [-0.5, -0.5, -0.5]


def test_gradients_are_scaled_down_to_the_largest_norm():
    module = Constant(0.0, 0.0, 0.0)

    def pull(evaluation, minibatch):
        return LossOutput(evaluation.log_probs.sum() * 0 + 10 * module.output.sum())

    trainer = GRPOTrainer(
        module,
        Bandit,
        recipe=recipes.critic_free(),
        loss=[pull],
        group_size=2,
        groups_per_step=1,
        plan=MinibatchPlan(epochs=1, size=None),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        max_grad_norm=0.3,
    )
    metrics = trainer.step()
    assert metrics["grad_norm"] == pytest.approx(10 * 3**0.5)  # before it was scaled
    assert float(module.output.detach().norm()) == pytest.approx(0.3, rel=1e-4)
