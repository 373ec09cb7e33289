"""Losses: each reads a policy's evaluation and a minibatch, and all of them are summed.

A loss is `(per step x weights).sum()`; the weights say what "mean" means. Rows of weight 0 are taken out before
any exponential, so that whatever they hold has no effect. Terms in the KL to a reference: `grpolib.kl_losses`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpolib import functional as F  # noqa: N812
from grpolib.minibatch import Minibatch
from grpolib.policies import Evaluation

AnyMinibatch: TypeAlias = Minibatch[Any]
RatioLevel: TypeAlias = Literal["step", "episode_mean", "episode_sum"]


@dataclass(frozen=True)
class LossOutput:
    """A scalar to be minimised, and detached scalars to be logged (their mean over the minibatches)."""

    loss: Float[Tensor, ""]
    metrics: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)


@runtime_checkable
class PolicyLoss(Protocol):
    """From an evaluation and a minibatch to a loss; a plain function will do.

    A true attribute `needs_reference` asks for a reference policy's log-probabilities in the minibatch,
    `needs_reference_parameters` for its distribution's parameters, `needs_critic` for values and returns,
    `needs_episodes` for whole episodes.
    """

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """The loss of one minibatch."""
        ...


@dataclass(frozen=True)
class ClippedSurrogateLoss:
    """PPO's clipped surrogate, negated: -sum_t w_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps_high) A_t).

    Args:
        clip_epsilon: eps, in [0, 1).
        clip_epsilon_high: eps_high, >= 0; None takes clip_epsilon (DAPO's clip-higher sets it).
        dual_clip: Bound > 1 on the ratio where the advantage is negative; None for none.
        ratio_level: "step"; "episode_mean", the geometric mean over the episode (GSPO); or "episode_sum", the
            episode's product. The last two need whole episodes.

    Source: PPO (arXiv:1707.06347) eq. 7; DAPO (arXiv:2503.14476) eq. 10; dual clip (arXiv:1912.09729) eq. 5;
        GSPO (arXiv:2507.18071) eq. 7.
    """

    clip_epsilon: float = 0.2
    clip_epsilon_high: float | None = None
    dual_clip: float | None = None
    ratio_level: RatioLevel = "step"

    def __post_init__(self) -> None:
        # The equations check their bounds; asked here, a wrong one fails where it is written.
        one = torch.ones(1)
        self._objective(one, one)
        check_ratio_level(self.ratio_level)

    @property
    def needs_episodes(self) -> bool:
        """Whether minibatches must hold whole episodes."""
        return self.ratio_level != "step"

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """The loss, with the ratio's diagnostics."""
        ratios = counted_ratios(minibatch, evaluation.log_probs, self.ratio_level)
        (advantages,) = counted_rows(minibatch, minibatch.advantages)
        objective = self._objective(ratios, advantages)
        metrics = ratio_metrics(minibatch, evaluation.log_probs, ratios)
        metrics |= clip_metrics(minibatch, ratios, self.clip_epsilon, self.clip_epsilon_high)
        return LossOutput(-(objective * minibatch.weights).sum(), metrics)

    def _objective(self, ratios: Tensor, advantages: Tensor) -> Tensor:
        return F.clipped_surrogate(
            ratios,
            advantages,
            clip_epsilon=self.clip_epsilon,
            clip_epsilon_high=self.clip_epsilon_high,
            dual_clip=self.dual_clip,
        )


@dataclass(frozen=True)
class CISPOLoss:
    """CISPO: the ratio is clipped and held constant, so every step keeps a gradient.

    -sum_t w_t sg(clip(rho_t, 1 - eps, 1 + eps_high)) A_t log pi_t. The upper bound is 1 + eps_high; without
    clip_epsilon there is no lower one. Libraries disagree under this name: TRL's epsilon_high is the bound itself,
    so its 5.0 is 4.0 here.

    Args:
        clip_epsilon_high: eps_high, >= 0.
        clip_epsilon: eps, in [0, 1), or None.

    Source: MiniMax-M1 (arXiv:2506.13585) eq. 4 and 5.
    """

    clip_epsilon_high: float = 4.0
    clip_epsilon: float | None = None

    def __post_init__(self) -> None:
        one = torch.ones(1)
        self._objective(one, one, one)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """The loss, with the ratio's diagnostics."""
        ratios = counted_ratios(minibatch, evaluation.log_probs, "step")
        log_probs, advantages = counted_rows(minibatch, evaluation.log_probs, minibatch.advantages)
        objective = self._objective(ratios, advantages, log_probs)
        metrics = ratio_metrics(minibatch, evaluation.log_probs, ratios)
        return LossOutput(-(objective * minibatch.weights).sum(), metrics)

    def _objective(self, ratios: Tensor, advantages: Tensor, log_probs: Tensor) -> Tensor:
        return F.cispo_objective(
            ratios,
            advantages,
            log_probs,
            clip_epsilon_high=self.clip_epsilon_high,
            clip_epsilon=self.clip_epsilon,
        )


@dataclass(frozen=True)
class ValueLoss:
    """Squared error of the critic: coefficient x sum_t w_t (V_t - R_t)^2, R the estimator's returns.

    Args:
        coefficient: > 0; 0.5 is PPO's usual one.
    """

    coefficient: float = 0.5
    needs_critic = True

    def __post_init__(self) -> None:
        check_coefficient(self, self.coefficient)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """The loss of the values."""
        if evaluation.values is None or minibatch.returns is None:
            raise ValueError(
                f"{self} needs values and returns: give critic=Critic(module) and an estimator with returns, GAE(...)"
            )
        values, returns = counted_rows(minibatch, evaluation.values, minibatch.returns)
        loss = ((values - returns).square() * minibatch.weights).sum()
        return LossOutput(self.coefficient * loss, {"value_loss": loss.detach()})


@dataclass(frozen=True)
class EntropyBonus:
    """Rewards a policy for staying random: -coefficient x sum_t w_t H_t.

    Args:
        coefficient: >= 0 (a schedule may end at 0), in reward units per nat.
    """

    coefficient: float

    def __post_init__(self) -> None:
        if not 0 <= self.coefficient < float("inf"):
            raise ValueError(f"{self}: the coefficient must be >= 0 and finite")

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """The negative bonus."""
        (entropy,) = counted_rows(minibatch, evaluation.entropy)
        return LossOutput(-self.coefficient * (entropy * minibatch.weights).sum())


def needs_episodes(loss: PolicyLoss) -> bool:
    """Whether a loss reads whole episodes."""
    return bool(getattr(loss, "needs_episodes", False))


def check_coefficient(piece: Any, coefficient: float) -> None:
    """Raise unless the coefficient is positive."""
    if not coefficient > 0:
        raise ValueError(f"{piece}: the coefficient must be > 0; leave the term (and what it needs) out instead")


def check_ratio_level(level: RatioLevel) -> None:
    """Raise for an unknown level; the equation knows them."""
    one = torch.ones(1)
    F.importance_ratio(one, one, lengths=torch.ones(1, dtype=torch.long), level=level)


def counted(minibatch: AnyMinibatch) -> Bool[Tensor, " s"]:
    """The rows that count."""
    return minibatch.weights != 0


def counted_rows(minibatch: AnyMinibatch, *values: Tensor) -> list[Tensor]:
    """`values` with 0 where a row does not count, whatever stood there; no gradient flows to such a row."""
    rows = counted(minibatch)
    for value in values:
        if value.shape != rows.shape:
            raise ValueError(
                f"a value per step has shape {tuple(value.shape)}, the minibatch has {len(rows)} steps: scalars per "
                "step are one-dimensional and never broadcast"
            )
    return [torch.where(rows, value, torch.zeros_like(value)) for value in values]


@torch.no_grad()
def counted_mean(minibatch: AnyMinibatch, values: Float[Tensor, " s"]) -> Float[Tensor, ""]:
    """Mean over the rows that count, without gradient: for metrics."""
    (values,) = counted_rows(minibatch, values)
    return values.sum() / counted(minibatch).sum().clamp(min=1)


def counted_ratios(minibatch: AnyMinibatch, log_probs: Float[Tensor, " s"], level: RatioLevel) -> Float[Tensor, " s"]:
    """Pi / pi_old per step or episode, over the rows that count; 1 elsewhere."""
    if level == "step":
        new, old = counted_rows(minibatch, log_probs, minibatch.old_log_probs)
        return F.importance_ratio(new, old)
    if minibatch.lengths is None:
        raise ValueError(f"ratio_level={level!r} needs whole episodes: set plan=MinibatchPlan(..., by='episode')")
    rows = counted(minibatch)
    lengths = torch.zeros_like(minibatch.lengths).index_add_(0, F.episode_ids(minibatch.lengths), rows.long())
    ratios = F.importance_ratio(
        log_probs[rows], minibatch.old_log_probs[rows], lengths=lengths[lengths > 0], level=level
    )
    return torch.ones_like(log_probs).masked_scatter(rows, ratios)


@torch.no_grad()
def ratio_metrics(
    minibatch: AnyMinibatch, log_probs: Float[Tensor, " s"], ratios: Float[Tensor, " s"]
) -> dict[str, Tensor]:
    """How far the policy has moved from the one that sampled, over the rows that count; see docs/metrics.md."""
    rows = counted(minibatch)
    new, old = counted_rows(minibatch, log_probs, minibatch.old_log_probs)
    return {
        "kl_old_k1": counted_mean(minibatch, F.kl_k1(old, new)),
        "kl_old_k3": counted_mean(minibatch, F.kl_k3(old, new)),
        "ratio_min": torch.where(rows.any(), torch.where(rows, ratios, torch.inf).min(), 1.0),
        "ratio_mean": counted_mean(minibatch, ratios),
        "ratio_max": torch.where(rows.any(), torch.where(rows, ratios, -torch.inf).max(), 1.0),
        "effective_sample_size": F.effective_sample_size(ratios, mask=rows),
    }


@torch.no_grad()
def clip_metrics(
    minibatch: AnyMinibatch, ratios: Tensor, clip_epsilon: float, clip_epsilon_high: float | None
) -> dict[str, Tensor]:
    """Shares of the counted steps whose gradient a bound has stopped."""
    low, high = F.clip_fractions(
        ratios,
        minibatch.advantages,
        clip_epsilon=clip_epsilon,
        clip_epsilon_high=clip_epsilon_high,
        mask=counted(minibatch),
    )
    return {"clip_fraction": low + high, "clip_fraction_low": low, "clip_fraction_high": high}
