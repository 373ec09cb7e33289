"""Terms in the KL divergence to a reference policy.

Value and gradient are two questions. On the policy's own samples, the value of k1 and k3 is unbiased, that of k2
is not. As a loss, the expected gradient of k1 is 0, of k2 that of the reverse KL(pi || pi_ref), of k3 that of the
forward KL(pi_ref || pi); with `gradient="reverse_kl"`, ratio x k, it is the reverse KL's for k1 and k3 too.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from jaxtyping import Float
from torch import Tensor

from grpolib import functional as F  # noqa: N812
from grpolib.losses import (
    AnyMinibatch,
    LossOutput,
    PolicyLoss,
    RatioLevel,
    check_coefficient,
    check_ratio_level,
    counted,
    counted_mean,
    counted_ratios,
    counted_rows,
)
from grpolib.policies import Evaluation
from grpolib.policies.distributions import kl_to_parameters

Gradient: TypeAlias = Literal["plain", "reverse_kl"]


@dataclass(frozen=True)
class _WithGradient:
    """A term by an estimate per step, whose gradient can be made the reverse KL's."""

    coefficient: float
    gradient: Gradient = "plain"
    ratio_level: RatioLevel = "step"
    needs_reference = True

    def __post_init__(self) -> None:
        check_coefficient(self, self.coefficient)
        _check_gradient(self.gradient, self.ratio_level)

    @property
    def needs_episodes(self) -> bool:
        """Whether minibatches must hold whole episodes."""
        return self.gradient == "reverse_kl" and self.ratio_level != "step"

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """Coefficient x weighted sum of the estimate."""
        return _kl_loss(self, self.gradient, evaluation, minibatch)

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Float[Tensor, " s"]:
        """Per step, in nats."""
        raise NotImplementedError


@dataclass(frozen=True)
class K1(_WithGradient):
    """KL to the reference by k1 = log pi - log pi_ref.

    As a plain loss its expected gradient is 0: it only adds noise. Its place is the reward,
    `ReferencePolicy(penalty=K1(coefficient))`, or a loss with `gradient="reverse_kl"`.

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.
        gradient: "plain" differentiates k1; "reverse_kl" ratio x k1.
        ratio_level: Of that ratio; the surrogate's.

    Source: Schulman, Approximating KL Divergence (2020).
    """

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Float[Tensor, " s"]:
        """k1 per step, in nats."""
        return F.kl_k1(log_probs, reference_log_probs)


@dataclass(frozen=True)
class K2:
    """KL to the reference by k2 = (log pi - log pi_ref)^2 / 2.

    Its value is biased; its expected gradient is the reverse KL's.

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.

    Source: Schulman, Approximating KL Divergence (2020).
    """

    coefficient: float
    ratio_level: ClassVar[RatioLevel] = "step"
    needs_reference = True

    def __post_init__(self) -> None:
        check_coefficient(self, self.coefficient)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """Coefficient x weighted sum of k2."""
        return _kl_loss(self, "plain", evaluation, minibatch)

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Float[Tensor, " s"]:
        """k2 per step, in nats."""
        return F.kl_k2(log_probs, reference_log_probs)


@dataclass(frozen=True)
class K3(_WithGradient):
    """KL to the reference by k3 = pi_ref/pi - log(pi_ref/pi) - 1, GRPO's own.

    Its value is never negative; its expected gradient as a plain loss is the forward KL's.

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.
        gradient: "plain" differentiates k3; "reverse_kl" ratio x k3.
        ratio_level: Of that ratio; the surrogate's.

    Source: DeepSeekMath (arXiv:2402.03300) eq. 4; ratio x k3: DeepSeek-V3.2 (arXiv:2512.02556).
    """

    def estimate(self, log_probs: Tensor, reference_log_probs: Tensor) -> Float[Tensor, " s"]:
        """k3 per step, in nats."""
        return F.kl_k3(log_probs, reference_log_probs)


@dataclass(frozen=True)
class ExactKL:
    """KL(pi || pi_ref) of the whole distribution at each visited state; Categorical and Gaussian policies.

    No estimate: value and gradient are exact, given the states.

    Args:
        coefficient: beta, > 0; leave the term out instead of 0.
    """

    coefficient: float
    needs_reference = True
    needs_reference_parameters = True

    def __post_init__(self) -> None:
        check_coefficient(self, self.coefficient)

    def __call__(self, evaluation: Evaluation, minibatch: AnyMinibatch, /) -> LossOutput:
        """Coefficient x weighted sum of the KL.

        Raises:
            ValueError: The policy's distribution is not in the evaluation, or the reference's not in the batch.
        """
        if evaluation.distribution is None or minibatch.reference_parameters is None:
            raise ValueError(f"{self} needs the policy's and the reference's distribution: use K3 where there is none")
        kl = kl_to_parameters(evaluation.distribution, minibatch.reference_parameters, counted(minibatch))
        return _weighted(kl, self.coefficient, minibatch)


KLEstimator: TypeAlias = K1 | K2 | K3


def needs_reference(loss: PolicyLoss) -> bool:
    """Whether a loss reads a reference policy."""
    return bool(getattr(loss, "needs_reference", False))


def needs_reference_parameters(loss: PolicyLoss) -> bool:
    """Whether a loss reads the parameters of the reference's distribution."""
    return bool(getattr(loss, "needs_reference_parameters", False))


def _check_gradient(gradient: Gradient, ratio_level: RatioLevel) -> None:
    if gradient not in get_args(Gradient):
        raise ValueError(f"gradient is {gradient!r}: choose one of {get_args(Gradient)}")
    check_ratio_level(ratio_level)


def _kl_loss(
    estimator: _WithGradient | K2, gradient: Gradient, evaluation: Evaluation, minibatch: AnyMinibatch
) -> LossOutput:
    if minibatch.reference_log_probs is None:
        raise ValueError(f"{estimator} needs a reference policy: give reference=ReferencePolicy(...)")
    new, reference = counted_rows(minibatch, evaluation.log_probs, minibatch.reference_log_probs)
    estimates = estimator.estimate(new, reference)
    if gradient == "plain":
        return _weighted(estimates, estimator.coefficient, minibatch)
    ratios = counted_ratios(minibatch, evaluation.log_probs, estimator.ratio_level)
    return _weighted(ratios * estimates, estimator.coefficient, minibatch)


def _weighted(kl: Tensor, coefficient: float, minibatch: AnyMinibatch) -> LossOutput:
    (kl,) = counted_rows(minibatch, kl)
    metrics = {"kl_reference": counted_mean(minibatch, kl)}
    return LossOutput(coefficient * (kl * minibatch.weights).sum(), metrics)
