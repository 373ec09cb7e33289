"""A Gaussian squeezed into the bounds of a Box by tanh, instead of cut off there."""

import math
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from grpolib.policies.recurrent import check_memoryless

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
"""Of a quadrature over the standard normal."""


class SquashedGaussian(Distribution):
    """a = middle + half · tanh(u) with u ~ Normal(mean, std): actions within the bounds of a Box, in its unit.

        log p(a) = log N(u) - Σ log(half · (1 - tanh² u))

    Actions are kept in float64, in which u comes back from them. `mode` is the action of the mean of u, the median.

    Args:
        mean: Of u, [n, ...] with the shape of the bounds.
        log_std: Of u, broadcastable to `mean`.
        low: Lower bounds, finite.
        high: Upper bounds, finite.

    Source: Haarnoja et al. (arXiv:1801.01290), appendix C.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, low: Tensor, high: Tensor) -> None:
        dimensions = mean.ndim - 1
        normal = Normal(mean, log_std.exp().expand_as(mean), validate_args=False)
        self.base = Independent(normal, dimensions, validate_args=False)
        self._middle, self._half = (low.double() + high.double()) / 2, (high.double() - low.double()) / 2
        super().__init__(mean.shape[:1], mean.shape[1:], validate_args=False)

    def squashed(self, unbounded: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        """The action of each u, strictly within the bounds, in float64."""
        largest = 1 - torch.finfo(torch.float64).eps
        return self._middle + self._half * unbounded.double().tanh().clamp(-largest, largest)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log p(a) in nats per unit of the action, [n], for actions [n, ...]."""
        largest = 1 - torch.finfo(torch.float64).eps
        unbounded = ((value.double() - self._middle) / self._half).clamp(-largest, largest).atanh()
        change = self._flat(_log_slope(unbounded) + self._half.log())
        normal: Tensor = self.base.log_prob(unbounded.to(self.base.mean.dtype))
        return normal - change.to(normal.dtype)

    def entropy(self) -> Tensor:
        """H(u) + E[Σ log(half · (1 - tanh² u))], the expectation by a quadrature of 32 points, with gradient."""
        mean, std = self.base.mean, self.base.stddev
        change: Any = 0.0
        for node, weight in zip(NODES, WEIGHTS / math.sqrt(2 * math.pi), strict=True):
            change = change + weight * _log_slope(mean + std * node)
        of_base: Tensor = self.base.entropy()
        return of_base + self._flat(change + self._half.log().to(mean.dtype))

    @property
    def mode(self) -> Tensor:
        """The action of the mean of u."""
        return self.squashed(self.base.mean)

    @staticmethod
    def _flat(terms: Tensor) -> Tensor:
        return terms.flatten(1).sum(1)


class Squashed(nn.Module):
    """A module whose Gaussian is squeezed into the bounds of a Box by tanh; without it, actions are cut to the bounds.

    Args:
        module: From observations to [n, 2 A], means and then log standard deviations, before the squeeze.
        action_space: A Box with finite bounds.

    Raises:
        TypeError: A `Recurrent` module, whose head is the one to squash.
        ValueError: Another space.
    """

    low: Tensor
    high: Tensor

    def __init__(self, module: nn.Module, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        check_memoryless(module, "Squashed", "give Recurrent(encoder, memory, Squashed(head, action_space))")
        if not (isinstance(action_space, Box) and action_space.is_bounded("both")):
            raise ValueError(f"{action_space} has no bounds to squeeze actions into: use the module without Squashed")
        if not np.issubdtype(action_space.dtype, np.floating):
            raise ValueError(f"{action_space} is not of floating-point numbers: wrap it in TransformAction")
        self.module = module
        for name in ("low", "high"):
            bounds = torch.from_numpy(getattr(action_space, name).astype(np.float64))
            self.register_buffer(name, bounds, persistent=False)

    def forward(self, observations: Any) -> SquashedGaussian:
        """The distribution in each of n observations."""
        output = cast(Tensor, self.module(observations))
        shape = self.low.shape
        if not isinstance(output, Tensor) or output.shape[1:] != (2 * math.prod(shape),):
            raise ValueError(
                f"the policy gave {getattr(output, 'shape', type(output))}: expected [n, {2 * math.prod(shape)}], "
                "means and then log standard deviations"
            )
        mean, log_std = (half.reshape(-1, *shape) for half in output.chunk(2, dim=1))
        return SquashedGaussian(mean, log_std, self.low, self.high)


def _log_slope(unbounded: Tensor) -> Tensor:
    """log(1 - tanh² u) = 2 (log 2 - u - softplus(-2 u)), without cancellation."""
    return 2 * (math.log(2) - unbounded - nn.functional.softplus(-2 * unbounded))
