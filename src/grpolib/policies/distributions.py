"""From a network's output to a distribution, and from a distribution to an action.

Draws come from a given generator: by inverse CDF for Categorical, mean + std x noise for Normal. Any other
`Distribution` can only draw from the global generator, so it is forked, seeded from the given one and put back.
"""

import math
from typing import Any

import gymnasium
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from grpolib.functional import categorical_kl, gaussian_kl


class LeanCategorical(Categorical):
    """A `Categorical` of few operations: on small networks they cost more than the arithmetic.

    `logits` are normalised in one step, `probs` are their exponentials, a log-probability is a plain gather.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = self._param = logits.log_softmax(-1)  # pyright: ignore[reportAttributeAccessIssue]
        self._num_events = logits.shape[-1]
        Distribution.__init__(self, logits.shape[:-1], validate_args=False)

    @property
    def probs(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Probabilities, [n, A]."""
        return self.logits.exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log pi(a), [n], for actions [n]."""
        return self.logits.gather(-1, value.unsqueeze(-1)).squeeze(-1)


def as_distribution(output: Any, space: gymnasium.Space[Any]) -> Distribution:
    """The action distribution of a network's output.

    Args:
        output: A `Distribution` as it is; for Discrete logits [n, A]; for Box [n, 2 A] (means, then log
            standard deviations) or a pair (mean, log std), each [n, A] or broadcastable to it.
        space: The action space.

    Raises:
        ValueError: The output does not fit the space.
    """
    if isinstance(output, Distribution):
        return output
    if isinstance(space, Discrete):
        return _categorical(output, space)
    if isinstance(space, Box):
        return _gaussian(output, space)
    raise ValueError(f"action space {space} is not supported")


def sample(distribution: Distribution, rng: torch.Generator) -> Tensor:
    """One action per row, drawn from `rng` alone."""
    if isinstance(distribution, Categorical):
        return _inverse_cdf(distribution.probs, rng)
    base = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if isinstance(base, Normal):
        noise = torch.randn(base.mean.shape, generator=rng, dtype=base.mean.dtype).to(base.mean.device)
        return base.mean + base.stddev * noise
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        return distribution.sample()


def mode(distribution: Distribution) -> Tensor:
    """The most probable action per row; the mean where the distribution has no mode."""
    try:
        return distribution.mode
    except NotImplementedError:
        return distribution.mean


def entropy(distribution: Distribution, log_probs: Tensor) -> Tensor:
    """Entropy in nats; where it has no closed form, the estimate -log pi(a|s), without gradient."""
    try:
        return distribution.entropy()
    except NotImplementedError:
        return -log_probs.detach()


def _categorical(output: Any, space: Discrete) -> Distribution:
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] != int(space.n):
        raise ValueError(
            f"the policy gave {_describe(output)} for {space}: expected logits of shape [n, {space.n}] or a "
            "torch.distributions.Distribution"
        )
    return LeanCategorical(output)


def _gaussian(output: Any, space: Box) -> Distribution:
    parameters = _mean_and_log_std(output, math.prod(space.shape))
    if parameters is None:
        dimensions = math.prod(space.shape)
        raise ValueError(
            f"the policy gave {_describe(output)} for {space}: expected [n, {2 * dimensions}] (means, then log "
            f"standard deviations), a pair (mean, log_std) of [n, {dimensions}] and what broadcasts to it, or a "
            "torch.distributions.Distribution"
        )
    mean, log_std = (parameter.reshape(-1, *space.shape) for parameter in parameters)
    return Independent(Normal(mean, log_std.exp(), validate_args=False), len(space.shape), validate_args=False)


def _mean_and_log_std(output: Any, dimensions: int) -> tuple[Tensor, Tensor] | None:
    """Both as [n, A], or None where the output is neither of the two forms."""
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] == 2 * dimensions:
        mean, log_std = output.chunk(2, dim=1)
        return mean, log_std
    if not (isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output)):
        return None
    mean, log_std = (part.flatten(1) if part.ndim > 2 else part for part in output)
    if mean.ndim != 2 or mean.shape[1] != dimensions:
        return None
    try:
        return mean, log_std.broadcast_to(mean.shape)
    except RuntimeError:
        return None


def _inverse_cdf(probs: Tensor, rng: torch.Generator) -> Tensor:
    cdf = probs.cumsum(-1)
    draws = torch.rand((*probs.shape[:-1], 1), generator=rng, dtype=probs.dtype).to(probs.device)
    # Strictly below the last entry and to the right of equal ones: an action of probability 0 is never drawn.
    # Nothing compares with a NaN, so it draws action 0; the log-probability tells.
    return (cdf <= draws * cdf[..., -1:]).sum(-1)


def _describe(output: Any) -> str:
    if isinstance(output, tuple) and len(output) == 2:
        return f"a pair of {_describe(output[0])} and {_describe(output[1])}"
    return f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def parameters_of(distribution: Distribution) -> Tensor:
    """One row of numbers per distribution, from which `kl_to_parameters` computes the KL.

    Raises:
        ValueError: Neither Categorical nor Normal.
    """
    if isinstance(distribution, Categorical):
        return distribution.logits
    mean, std = _gaussian_parameters(distribution)
    return torch.cat([mean, std], dim=1)


def kl_to_parameters(distribution: Distribution, parameters: Tensor, counts: Tensor) -> Tensor:
    """KL(distribution || the one with those parameters) per row, in nats; 0 without gradient where none counts.

    Raises:
        ValueError: Neither Categorical nor Normal.
    """
    if isinstance(distribution, Categorical):
        return categorical_kl(_or(distribution.logits, counts, 0.0), _or(parameters, counts, 0.0))
    mean, std = _gaussian_parameters(distribution)
    reference_mean, reference_std = parameters.chunk(2, dim=1)
    return gaussian_kl(
        _or(mean, counts, 0.0), _or(std, counts, 1.0), _or(reference_mean, counts, 0.0), _or(reference_std, counts, 1.0)
    )


def _or(rows: Tensor, counts: Tensor, otherwise: float) -> Tensor:
    """Before the equation and not after it: a row that does not count may hold anything, and 0 x NaN is NaN."""
    return torch.where(counts.unsqueeze(1), rows, otherwise)


def _gaussian_parameters(distribution: Distribution) -> tuple[Tensor, Tensor]:
    base = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if not isinstance(base, Normal):
        raise ValueError(f"the KL of {type(base).__name__} has no closed form here: use K3 instead of ExactKL")
    return base.mean.flatten(1), base.stddev.flatten(1)
