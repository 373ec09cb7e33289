"""Recipes: an algorithm is a choice of pieces, with no maths of its own."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from typing_extensions import TypedDict, Unpack

from grpolib.batch import MinibatchPlan, Reduction
from grpolib.estimators import AdvantageEstimator, GroupZScore, TimestepLeaveOneOut
from grpolib.losses import K3, ClippedSurrogateLoss, PolicyLoss, needs_reference
from grpolib.reference import ReferencePolicy

if TYPE_CHECKING:
    from grpolib.trainer import Trainer

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Schedule: TypeAlias = "Callable[[Trainer], None]"


ADAM: OptimizerFactory = partial(torch.optim.Adam, lr=3e-4, eps=1e-5, fused=True)
"""The published optimizer; fused takes one kernel instead of a dozen, also on a CPU."""


class Pieces(TypedDict, total=False):
    """The fields of `Recipe`, as keywords."""

    advantages: AdvantageEstimator
    loss: Sequence[PolicyLoss]
    reduction: Reduction
    plan: MinibatchPlan
    optimizer: OptimizerFactory
    schedules: Sequence[Schedule]
    reference: ReferencePolicy | None
    group_size: int
    groups_per_step: int
    max_grad_norm: float


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The pieces of an algorithm.

    Args:
        advantages: From a batch to one advantage per step.
        loss: Losses, summed.
        reduction: What "mean" means; see `step_weights`.
        plan: Epochs and minibatches.
        optimizer: From parameters to an optimizer.
        schedules: Called with the trainer before each iteration; each owns its horizon.
        reference: The reference policy of a KL term.
        group_size: G, episodes per group.
        groups_per_step: M, groups per iteration.
        max_grad_norm: The gradient is scaled down to this norm.

    Raises:
        ValueError: A KL term without a reference, a reference without a KL term, or a count below 1.
    """

    advantages: AdvantageEstimator
    loss: Sequence[PolicyLoss] = field(default_factory=lambda: [ClippedSurrogateLoss()])
    reduction: Reduction = "episode_mean"
    plan: MinibatchPlan = field(default_factory=MinibatchPlan)
    optimizer: OptimizerFactory = ADAM
    schedules: Sequence[Schedule] = ()
    reference: ReferencePolicy | None = None
    group_size: int = 16
    groups_per_step: int = 4
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        if not self.loss:
            raise ValueError("loss is empty: give at least one, for instance [ClippedSurrogateLoss()]")
        if self.groups_per_step < 1 or not self.max_grad_norm > 0:
            raise ValueError(
                f"groups_per_step={self.groups_per_step} must be >= 1 and max_grad_norm={self.max_grad_norm} > 0"
            )
        in_loss = [loss for loss in self.loss if needs_reference(loss)]
        if in_loss and self.reference is None:
            raise ValueError(f"{in_loss[0]} is a KL term without a reference: give reference=ReferencePolicy(...)")
        if self.reference is not None and not in_loss and self.reference.penalty is None:
            raise ValueError(
                "a reference was given but no KL term reads it: add K3(coefficient) to loss, set "
                "ReferencePolicy(penalty=K1(coefficient)), or leave the reference out"
            )

    def pieces(self) -> Pieces:
        """The fields as keywords of `Trainer`."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[return-value]

    def replaced(self, **pieces: Unpack[Pieces]) -> "Recipe":
        """This recipe with single pieces replaced.

        Raises:
            TypeError: A keyword that is no piece; the message lists them.
        """
        check_pieces(pieces)
        return dataclasses.replace(self, **pieces)


def check_pieces(pieces: Any) -> None:
    """Raise for keywords that are no fields of `Recipe`."""
    known = [f.name for f in dataclasses.fields(Recipe)]
    unknown = [name for name in pieces if name not in known]
    if unknown:
        raise TypeError(f"unknown keyword {unknown[0]!r}; the pieces of a recipe are {', '.join(known)}")


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


def critic_free() -> Recipe:
    """GRPO for dense rewards: a leave-one-out baseline per time step, every step weighted the same, no KL."""
    return Recipe(advantages=TimestepLeaveOneOut(discount=0.99), reduction="step_mean")
