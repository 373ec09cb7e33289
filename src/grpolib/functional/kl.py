"""KL divergence from the policy to its reference, per sample (k1, k2, k3) and exact.

π is the policy, ref its reference. The estimators read one action a ~ π. Value and gradient are separate
questions, so each says what its mean is, and what its mean gradient is as a loss under the policy's own
samples. The reference is a constant: no gradient flows into it.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from grpolib.functional._checks import check_shape
from grpolib.functional.segments import at_least_float32

TANGENT_FROM = 20.0
"""Where k3 goes on as a straight line: log(ref/π) in nats."""


def kl_k1(log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the log-ratio estimate of KL(π‖ref).

        k1 = log π(a) - log ref(a)

    Value: unbiased, of either sign. Gradient as a loss: 0 in the mean, E[∇log π] = 0; so k1 belongs in
    the reward.

    Args:
        log_probs: log π(a), nats.
        reference_log_probs: log ref(a), nats; a constant.

    Returns:
        Nats, float32 or wider, differentiable in `log_probs`.

    Raises:
        ValueError: Shapes differ.

    Source: Schulman, Approximating KL Divergence (2020), estimator k1.

    >>> kl_k1(torch.tensor([-1.0]), torch.tensor([-2.0]))
    tensor([1.])
    """
    log_probs, reference_log_probs = _comparable(log_probs, reference_log_probs)
    return log_probs - reference_log_probs


def kl_k2(log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return half the squared log-ratio, an estimate of KL(π‖ref).

        k2 = ½ (log π(a) - log ref(a))²

    Value: biased, never negative. Gradient as a loss: that of the reverse KL(π‖ref),
    E[(log π - log ref) ∇log π].

    Args:
        log_probs: log π(a), nats.
        reference_log_probs: log ref(a), nats; a constant.

    Returns:
        Nats, float32 or wider, differentiable in `log_probs`.

    Raises:
        ValueError: Shapes differ.

    Source: Schulman, Approximating KL Divergence (2020), estimator k2.

    >>> kl_k2(torch.tensor([-1.0]), torch.tensor([-2.0]))
    tensor([0.5000])
    """
    return 0.5 * kl_k1(log_probs, reference_log_probs).square()


def kl_k3(log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the non-negative, unbiased estimate of KL(π‖ref) that GRPO uses.

        k3 = exp(d) - d - 1,   d = log ref(a) - log π(a)

    Value: unbiased, ≥ 0 up to rounding. Gradient as a loss: that of the forward KL(ref‖π),
    E[(1 - ref/π) ∇log π]. Beyond d = 20 the curve goes on along its tangent: value and gradient stay finite,
    and the gradient keeps its sign.

    Args:
        log_probs: log π(a), nats.
        reference_log_probs: log ref(a), nats; a constant.

    Returns:
        Nats, float32 or wider, differentiable in `log_probs`.

    Raises:
        ValueError: Shapes differ.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.1, eq. 4; Schulman (2020), estimator k3.

    >>> kl_k3(torch.tensor([-1.0]), torch.tensor([-2.0]))
    tensor([0.3679])
    """
    log_probs, reference_log_probs = _comparable(log_probs, reference_log_probs)
    log_ratios = reference_log_probs - log_probs
    curve = log_ratios.clamp(max=TANGENT_FROM)
    # relu, whose slope at 0 is 0: at d = 20 itself clamp passes the gradient already.
    beyond = torch.relu(log_ratios - TANGENT_FROM)
    return curve.exp() - curve - 1 + math.expm1(TANGENT_FROM) * beyond


def categorical_kl(
    logits: Float[Tensor, "*batch A"], reference_logits: Float[Tensor, "*batch A"]
) -> Float[Tensor, "*batch"]:
    """Return the exact KL divergence between two categorical distributions.

        KL(π‖ref) = Σₐ π(a) (log π(a) - log ref(a)),   with 0 · anything = 0

    Args:
        logits: Unnormalised log-probabilities of π; -inf forbids an action.
        reference_logits: The same of the reference; a constant. Infinite KL where it forbids what π allows.

    Returns:
        Nats, ≥ 0 up to rounding, float32 or wider, differentiable in `logits`.

    Raises:
        ValueError: Shapes differ.

    Source: Kullback and Leibler (1951), On Information and Sufficiency.

    >>> categorical_kl(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log())
    tensor([0.1927])
    """
    check_shape(logits.shape, "logits", reference_logits=reference_logits)
    dtype = at_least_float32(logits, reference_logits)
    log_probs = logits.to(dtype).log_softmax(-1)
    reference_log_probs = reference_logits.detach().to(dtype).log_softmax(-1)
    probs = log_probs.exp()
    # The choice is made before the product: 0 · inf is NaN, in the value and in the gradient.
    log_ratios = torch.where(probs > 0, log_probs - reference_log_probs, 0.0)
    return (probs * log_ratios).sum(-1)


def gaussian_kl(
    mean: Float[Tensor, "*batch A"],
    std: Float[Tensor, "*batch A"],
    reference_mean: Float[Tensor, "*batch A"],
    reference_std: Float[Tensor, "*batch A"],
) -> Float[Tensor, "*batch"]:
    """Return the exact KL divergence between two diagonal Gaussians, summed over the last axis.

        KL(π‖ref) = Σ ½ (q² + z² - 1) - log q,   q = σ / σ_ref,   z = (μ - μ_ref) / σ_ref

    Args:
        mean: μ, in the unit of the action.
        std: σ > 0, in the unit of the action, expanded to the shape of `mean`.
        reference_mean: μ_ref; a constant.
        reference_std: σ_ref > 0; a constant.

    Returns:
        Nats, ≥ 0 up to rounding, float32 or wider, differentiable in `mean` and `std`.

    Raises:
        ValueError: Shapes differ.

    Source: Kingma and Welling (arXiv:1312.6114), appendix B, where μ_ref = 0 and σ_ref = 1.

    >>> gaussian_kl(*(torch.tensor([[x]]) for x in (1.0, 1.0, 0.0, 1.0)))
    tensor([0.5000])
    """
    check_shape(mean.shape, "mean", std=std, reference_mean=reference_mean, reference_std=reference_std)
    dtype = at_least_float32(mean, std, reference_mean, reference_std)
    scale = reference_std.detach().to(dtype)
    spread = std.to(dtype) / scale
    shift = (mean.to(dtype) - reference_mean.detach().to(dtype)) / scale
    return (0.5 * (spread.square() + shift.square() - 1) - spread.log()).sum(-1)


def _comparable(
    log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Widen both to float32 at least and cut the reference from the graph."""
    check_shape(log_probs.shape, "log_probs", reference_log_probs=reference_log_probs)
    dtype = at_least_float32(log_probs, reference_log_probs)
    return log_probs.to(dtype), reference_log_probs.detach().to(dtype)
