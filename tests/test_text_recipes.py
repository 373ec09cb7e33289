import dataclasses

import pytest
import torch
from helpers import make_batch

from grpolib import (
    K1,
    K3,
    CISPOLoss,
    ClippedSurrogateLoss,
    CompletionSampler,
    GroupZScore,
    LeaveOneOut,
    ProcessSupervision,
    Recipe,
    ReferencePolicy,
    RewardToGo,
    recipes,
)

NAMES = [
    "text_grpo",
    "rloo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "reinforce_plus_plus",
    "sequence_grpo",
    "process_supervision",
    "like_trl",
    "like_verl",
    "like_openrlhf",
]
NO_KL = [ClippedSurrogateLoss()]
FROZEN = ReferencePolicy()

PIECES = {
    "text_grpo": (GroupZScore(), [ClippedSurrogateLoss(), K3(0.04)], "episode_mean", FROZEN),
    "rloo": (LeaveOneOut(), NO_KL, "constant", ReferencePolicy(penalty=K1(0.05))),
    "dr_grpo": (GroupZScore(scale="none"), NO_KL, "constant", None),
    "dapo": (GroupZScore(), [ClippedSurrogateLoss(0.2, 0.28)], "step_mean", None),
    "gspo": (
        GroupZScore(),
        [ClippedSurrogateLoss(3e-4, 4e-4, ratio_level="episode_mean")],
        "episode_mean",
        None,
    ),
    "cispo": (GroupZScore(), [CISPOLoss(4.0)], "step_mean", None),
    "reinforce_plus_plus": (
        RewardToGo(over="batch", discount=1.0),
        NO_KL,
        "step_mean",
        ReferencePolicy(penalty=K1(0.01)),
    ),
    "sequence_grpo": (
        GroupZScore(epsilon=1e-8),
        [
            ClippedSurrogateLoss(ratio_level="episode_sum"),
            K1(0.04, gradient="reverse_kl", ratio_level="episode_sum"),
        ],
        "episode_mean",
        FROZEN,
    ),
    "process_supervision": (ProcessSupervision(), [ClippedSurrogateLoss(), K3(0.04)], "episode_mean", FROZEN),
    "like_trl": (GroupZScore(epsilon=1e-4, correction=1), NO_KL, "step_mean", None),
    "like_verl": (GroupZScore(epsilon=1e-6, correction=1), [ClippedSurrogateLoss(dual_clip=3.0)], "step_mean", None),
    "like_openrlhf": (
        GroupZScore(epsilon=1e-9, correction=1),
        [ClippedSurrogateLoss(), K3(0.01)],
        "step_mean",
        FROZEN,
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_pieces(name):
    recipe = getattr(recipes, name)()
    assert (recipe.advantages, list(recipe.loss), recipe.reduction, recipe.reference) == PIECES[name]
    assert recipe == getattr(recipes, name)()
    assert recipe.plan.by == "episode"
    assert recipe.plan.epochs == 1
    assert recipe.max_grad_norm == 1.0
    assert recipe.critic is None


@pytest.mark.parametrize("name", NAMES)
def test_a_language_model_learns_slowly(name):
    optimizer = getattr(recipes, name)().optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert [group["lr"] for group in optimizer.param_groups] == [1e-6]


def test_text_grpo_is_grpo_but_for_four_pieces():
    differ = {
        field.name
        for field in dataclasses.fields(Recipe)
        if getattr(recipes.text_grpo(), field.name) != getattr(recipes.grpo(), field.name)
    }
    assert differ == {"plan", "optimizer", "reference", "max_grad_norm"}


@pytest.mark.parametrize(
    ("name", "divisor"),
    # Rewards 1, 0, 0, 0: 1 - 1/4 over the root of 3/16, or of 1/4 where G - 1 divides.
    [("text_grpo", 3 / 16), ("like_trl", 1 / 4), ("like_verl", 1 / 4), ("like_openrlhf", 1 / 4)],
)
def test_the_divisor_of_the_standard_deviation(name, divisor):
    batch = make_batch((1, 1, 1, 1), rewards=[1.0, 0.0, 0.0, 0.0])
    advantages = getattr(recipes, name)().advantages(batch)
    assert advantages[0].item() == pytest.approx(0.75 / divisor**0.5, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("process_supervision", "reinforce_plus_plus")])
@pytest.mark.parametrize("value", [0.1, 0.2, 0.3, 0.7])
def test_equal_groups_are_exactly_zero(name, value):
    batch = make_batch((2,) * 12, rewards=[0.0, value] * 12)
    assert getattr(recipes, name)().advantages(batch).tolist() == [0.0] * 24


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_one_are_refused(name):
    with pytest.raises(ValueError, match="group_size is 1"):
        getattr(recipes, name)().replaced(group_size=1)
    with pytest.raises(ValueError, match="group_size is 1"):
        CompletionSampler(["a"], lambda prompts, completions: [0.0], 1)
