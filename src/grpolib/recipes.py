"""Recipes: an algorithm is a choice of pieces, with no maths of its own; docs/algorithms.md lists the pieces."""

from collections.abc import Sequence
from functools import partial

import torch

from grpolib.estimators import GAE, GroupZScore, TimestepLeaveOneOut
from grpolib.kl_losses import K3
from grpolib.losses import ClippedSurrogateLoss, ValueLoss
from grpolib.minibatch import MinibatchPlan
from grpolib.recipe import ADAM as ADAM
from grpolib.recipe import OptimizerFactory as OptimizerFactory
from grpolib.recipe import Pieces as Pieces
from grpolib.recipe import Recipe as Recipe
from grpolib.recipe import check_pieces as check_pieces
from grpolib.recipe import rows_to_compile as rows_to_compile
from grpolib.reference import ReferencePolicy
from grpolib.schedules import LearningRate, Linear, Schedule
from grpolib.text_recipes import cispo as cispo
from grpolib.text_recipes import dapo as dapo
from grpolib.text_recipes import dr_grpo as dr_grpo
from grpolib.text_recipes import gspo as gspo
from grpolib.text_recipes import like_openrlhf as like_openrlhf
from grpolib.text_recipes import like_trl as like_trl
from grpolib.text_recipes import like_verl as like_verl
from grpolib.text_recipes import process_supervision as process_supervision
from grpolib.text_recipes import reinforce_plus_plus as reinforce_plus_plus
from grpolib.text_recipes import rloo as rloo
from grpolib.text_recipes import sequence_grpo as sequence_grpo
from grpolib.text_recipes import text_grpo as text_grpo


def grpo() -> Recipe:
    """GRPO as published for LunarLander: outcome supervision, 1/|o_i|, k3 to a reference refreshed every 10.

    Source: DeepSeekMath (arXiv:2402.03300) section 4.1, with a reference that follows, since a policy from
    scratch has no prior worth staying close to.
    """
    return Recipe(
        advantages=GroupZScore(),
        loss=[ClippedSurrogateLoss(), K3(0.04)],
        reference=ReferencePolicy(refresh_every=10),
    )


def critic_free(total_steps: int | None = None) -> Recipe:
    """GRPO for dense rewards: a leave-one-out baseline and a scale per time step, every step weighted the same, no KL.

    Args:
        total_steps: Anneals the learning rate linearly to 0 at this many environment steps; None keeps it.

    Source: this library; docs/results.md has the study that chose it.
    """
    return Recipe(
        advantages=TimestepLeaveOneOut(discount=0.99, normalize="timestep"),
        reduction="step_mean",
        plan=MinibatchPlan(epochs=10, size=256),
        optimizer=partial(torch.optim.Adam, lr=1e-3, eps=1e-5, fused=True),
        schedules=_annealed(1e-3, total_steps),
        group_size=8,
    )


def ppo(total_steps: int | None = None) -> Recipe:
    """PPO: a critic, GAE, the clipped surrogate and a value loss, on a fixed number of steps.

    Args:
        total_steps: Anneals the learning rate linearly to 0 at this many environment steps; None keeps it.

    Source: PPO (arXiv:1707.06347); 4 epochs of minibatches of 64 steps, as `grpo()` has them.
    """
    return Recipe(
        advantages=GAE(),
        loss=[ClippedSurrogateLoss(), ValueLoss(0.5)],
        reduction="step_mean",
        schedules=_annealed(3e-4, total_steps),
    )


def a2c(total_steps: int | None = None) -> Recipe:
    """A2C: one update per rollout, so that the surrogate's gradient is the policy gradient.

    Args:
        total_steps: Anneals the learning rate linearly to 0 at this many environment steps; None keeps it.

    Source: A3C (arXiv:1602.01783), synchronous; RMSprop and its constants as in Stable-Baselines3.
    """
    return Recipe(
        advantages=GAE(gae_lambda=1.0, normalize=False),
        loss=[ClippedSurrogateLoss(), ValueLoss(0.5)],
        reduction="step_mean",
        plan=MinibatchPlan(epochs=1, size=None),
        optimizer=partial(torch.optim.RMSprop, lr=7e-4, alpha=0.99, eps=1e-5),
        schedules=_annealed(7e-4, total_steps),
    )


def _annealed(learning_rate: float, total_steps: int | None) -> Sequence[Schedule]:
    return () if total_steps is None else (LearningRate(Linear(learning_rate, 0.0, total_steps=total_steps)),)
