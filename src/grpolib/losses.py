"""Losses: each reads a policy's evaluation and a minibatch, and all of them are summed.

A loss is `(per step x weights).sum()`; the weights say what "mean" means. Rows of weight 0 are taken out before
any exponential, so that whatever they hold has no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from grpolib import functional as F  # noqa: N812
from grpolib.batch import Minibatch
from grpolib.policies import Evaluation

AnyMinibatch: TypeAlias = Minibatch[Any]


@dataclass(frozen=True)
class LossOutput:
    """A scalar to be minimised, and detached scalars to be logged (their mean over the minibatches)."""

    loss: Float[Tensor, ""]
    metrics: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)


class PolicyLoss(Protocol):
    """From an evaluation and a minibatch to a loss; a plain function will do.

    One with a true attribute `needs_reference` gets a reference policy's log-probabilities in the minibatch.
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

    Source: PPO (arXiv:1707.06347) eq. 7; DAPO (arXiv:2503.14476) eq. 10; dual clip (arXiv:1912.09729) eq. 5.
    """

    clip_epsilon: float = 0.2
    clip_epsilon_high: float | None = None
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        one = torch.ones(1)
        # Bounds are checked by the equation itself, here so that a wrong one fails where it is written.
        F.clipped_surrogate(one, one, **self._bounds(), dual_clip=self.dual_clip)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """The loss, with the ratio's diagnostics."""
        log_probs, old_log_probs = counted_rows(minibatch, evaluation.log_probs, minibatch.old_log_probs)
        ratios = F.importance_ratio(log_probs, old_log_probs)
        objective = F.clipped_surrogate(ratios, minibatch.advantages, **self._bounds(), dual_clip=self.dual_clip)
        metrics = ratio_metrics(minibatch, ratios.detach(), log_probs.detach(), old_log_probs, **self._bounds())
        return LossOutput(-(objective * minibatch.weights).sum(), metrics)

    def _bounds(self) -> dict[str, Any]:
        return {"clip_epsilon": self.clip_epsilon, "clip_epsilon_high": self.clip_epsilon_high}


@dataclass(frozen=True)
class K1:
    """KL to the reference by k1 = log pi - log pi_ref.

    As a loss its expected gradient on the policy's own samples is 0: it only adds noise. Its place is the
    reward: `ReferencePolicy(penalty=K1(coefficient))`.

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.

    Source: Schulman, Approximating KL Divergence (2020).
    """

    coefficient: float
    needs_reference = True

    def __post_init__(self) -> None:
        _check_coefficient(self)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """Coefficient x weighted sum of k1."""
        return _kl_loss(self, evaluation, minibatch)

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
        """k1 per step, in nats."""
        return F.kl_k1(log_probs, reference_log_probs)


@dataclass(frozen=True)
class K2:
    """KL to the reference by k2 = (log pi - log pi_ref)^2 / 2.

    Its value is biased; its expected gradient as a loss, on the policy's own samples, is the reverse KL's,
    KL(pi || pi_ref).

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.

    Source: Schulman, Approximating KL Divergence (2020).
    """

    coefficient: float
    needs_reference = True

    def __post_init__(self) -> None:
        _check_coefficient(self)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """Coefficient x weighted sum of k2."""
        return _kl_loss(self, evaluation, minibatch)

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
        """k2 per step, in nats."""
        return F.kl_k2(log_probs, reference_log_probs)


@dataclass(frozen=True)
class K3:
    """KL to the reference by k3 = pi_ref/pi - log(pi_ref/pi) - 1, GRPO's own.

    Its value is an unbiased estimate of KL(pi || pi_ref) and never negative; its expected gradient as a loss, on
    the policy's own samples, is the forward KL's, KL(pi_ref || pi).

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.

    Source: DeepSeekMath (arXiv:2402.03300) eq. 4.
    """

    coefficient: float
    needs_reference = True

    def __post_init__(self) -> None:
        _check_coefficient(self)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """Coefficient x weighted sum of k3."""
        return _kl_loss(self, evaluation, minibatch)

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
        """k3 per step, in nats."""
        return F.kl_k3(log_probs, reference_log_probs)


KLEstimator: TypeAlias = K1 | K2 | K3


def needs_reference(loss: PolicyLoss) -> bool:
    """Whether a loss reads a reference policy's log-probabilities."""
    return bool(getattr(loss, "needs_reference", False))


def counted_rows(minibatch: AnyMinibatch, *values: Tensor) -> list[Tensor]:
    """`values` with 0 where a row's weight is 0, whatever stood there; no gradient flows to such a row."""
    counts = minibatch.weights != 0
    return [torch.where(counts, value, torch.zeros_like(value)) for value in values]


@torch.no_grad()
def ratio_metrics(
    minibatch: AnyMinibatch,
    ratios: Tensor,
    log_probs: Tensor,
    old_log_probs: Tensor,
    *,
    clip_epsilon: float,
    clip_epsilon_high: float | None,
) -> dict[str, Tensor]:
    """How far the policy has moved from the one that sampled; see docs/metrics.md."""
    low, high = F.clip_fractions(
        ratios, minibatch.advantages, clip_epsilon=clip_epsilon, clip_epsilon_high=clip_epsilon_high
    )
    return {
        "clip_fraction": low + high,
        "kl_old": F.kl_k3(old_log_probs, log_probs).mean(),
        "ratio_min": ratios.min(),
        "ratio_max": ratios.max(),
    }


def _kl_loss(estimator: KLEstimator, evaluation: Evaluation, minibatch: AnyMinibatch) -> LossOutput:
    if minibatch.reference_log_probs is None:
        raise ValueError(f"{estimator} needs a reference policy: give reference=ReferencePolicy(...)")
    log_probs, reference_log_probs = counted_rows(minibatch, evaluation.log_probs, minibatch.reference_log_probs)
    estimates = estimator.estimate(log_probs, reference_log_probs)
    metrics = {"kl_reference": estimates.detach().mean()}
    return LossOutput(estimator.coefficient * (estimates * minibatch.weights).sum(), metrics)


def _check_coefficient(estimator: KLEstimator) -> None:
    if not estimator.coefficient > 0:
        raise ValueError(f"{estimator}: the coefficient must be > 0; leave the term (and the reference) out instead")
