"""A recipe: the pieces of an algorithm, and which of them fit together."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, get_args

import torch
from torch import nn
from typing_extensions import TypedDict, Unpack

from grpolib.critic import Critic
from grpolib.estimators import AdvantageEstimator, needs_critic
from grpolib.functional._checks import check_number, check_whole
from grpolib.kl_losses import K1, K3, needs_reference
from grpolib.losses import CISPOLoss, ClippedSurrogateLoss, PolicyLoss, ValueLoss, needs_episodes
from grpolib.minibatch import MinibatchPlan, Reduction
from grpolib.reference import ReferencePolicy
from grpolib.schedules import LossSetting, Schedule

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


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
    critic: Critic | None
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
        critic: Values for GAE, trained beside the policy.
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
    critic: Critic | None = None
    group_size: int = 16
    groups_per_step: int = 4
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.reduction not in get_args(Reduction):
            raise ValueError(f"reduction is {self.reduction!r}: choose one of {get_args(Reduction)}")
        if self.group_size < 2:
            raise ValueError(f"group_size is {self.group_size}: a group needs >= 2 episodes to compare")
        if not self.loss:
            raise ValueError("loss is empty: give at least one, for instance [ClippedSurrogateLoss()]")
        if self.groups_per_step < 1 or not self.max_grad_norm > 0:
            raise ValueError(
                f"groups_per_step={self.groups_per_step} must be >= 1 and max_grad_norm={self.max_grad_norm} > 0"
            )
        if self.critic is not None and not self.needs_critic:
            raise ValueError("a critic was given but nothing reads it: use GAE and ValueLoss, or leave it out")
        if any(isinstance(loss, ValueLoss) for loss in self.loss) and not hasattr(self.advantages, "returns"):
            raise ValueError(f"ValueLoss needs targets and {self.advantages} has no returns(batch): use GAE(...)")
        self._check_reference()
        self._check_episodes()

    def _check_kinds(self) -> None:
        for name, example in (("loss", "[ClippedSurrogateLoss()]"), ("schedules", "[LearningRate(...)]")):
            if not isinstance(getattr(self, name), Sequence):
                raise TypeError(f"{name} is {getattr(self, name)!r}: give a list, for instance {example}")
        for name, kind in (("plan", MinibatchPlan), ("reference", ReferencePolicy), ("critic", Critic)):
            value = getattr(self, name)
            if not isinstance(value, kind) and (value is not None or name == "plan"):
                raise TypeError(f"{name} is {value!r}: give a {kind.__name__}")
        for piece in (self.advantages, *self.loss, *self.schedules, self.optimizer):
            if not callable(piece) or (isinstance(piece, type) and piece is not self.optimizer):
                raise TypeError(f"{piece!r} can not be called as a piece: give an instance or a function")
        check_whole(group_size=self.group_size, groups_per_step=self.groups_per_step)
        check_number("max_grad_norm", self.max_grad_norm)

    @property
    def needs_critic(self) -> bool:
        """Whether the estimator or a loss reads a critic's values."""
        return any(needs_critic(piece) for piece in (self.advantages, *self.loss))

    def _check_reference(self) -> None:
        in_loss = [loss for loss in self.loss if needs_reference(loss)]
        if in_loss and self.reference is None:
            raise ValueError(f"{in_loss[0]} is a KL term without a reference: give reference=ReferencePolicy(...)")
        if self.reference is not None and not in_loss and self.reference.penalty is None:
            raise ValueError(
                "a reference was given but no KL term reads it: add K3(coefficient) to loss, set "
                "ReferencePolicy(penalty=K1(coefficient)), or set reference=None"
            )

    def _check_episodes(self) -> None:
        whole = [loss for loss in self.loss if needs_episodes(loss)]
        if whole and self.plan.by == "step":
            raise ValueError(f"{whole[0]} reads whole episodes: set plan=MinibatchPlan(..., by='episode')")
        levels = {"step" for loss in self.loss if isinstance(loss, CISPOLoss)}
        levels |= {loss.ratio_level for loss in self.loss if isinstance(loss, ClippedSurrogateLoss)}
        for loss in self.loss:
            if isinstance(loss, K1 | K3) and loss.gradient == "reverse_kl" and levels - {loss.ratio_level}:
                raise ValueError(f"{loss} weights the KL with a ratio of another level than the surrogate's: {levels}")

    def pieces(self) -> Pieces:
        """The fields as keywords of `Trainer`."""
        # The names are those of `Pieces`, which a type checker cannot see in a comprehension.
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


def rows_to_compile(recipe: Recipe) -> int | None:
    """Rows of every minibatch, where all have the same and the losses stay as they are: that can be compiled."""
    changes = any(isinstance(schedule, LossSetting) for schedule in recipe.schedules)
    return None if changes or recipe.plan.by == "episode" else recipe.plan.size
