"""From a network's output to a distribution, and from a distribution to an action.

Every space of whole numbers is Categorical: MultiDiscrete and MultiBinary are several in a row, padded with actions of
probability 0 where they differ in size. A nested space has the product of its parts' distributions, `Joint`.

Draws come from a given generator: by inverse CDF for Categorical, mean + std x noise for Normal. Any other
`Distribution` can only draw from the global generator, so it is forked, seeded from the given one and put back.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from grpolib.functional import categorical_kl, gaussian_kl
from grpolib.policies.spaces import choices, parts_of
from grpolib.policies.squashed import SquashedGaussian
from grpolib.trees import leaves, tree_map


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


class Joint(Distribution):
    """Independent distributions of the parts of a Dict or Tuple; values are trees of the same form.

    Args:
        parts: By name or place, possibly nested.
    """

    def __init__(self, parts: Any) -> None:
        self.parts = parts
        super().__init__(leaves(parts)[0].batch_shape, validate_args=False)

    def log_prob(self, value: Any) -> Tensor:
        """The sum of the parts' log-probabilities, [n]."""
        return _total(leaves(tree_map(lambda part, some: part.log_prob(some), self.parts, value)))

    def entropy(self) -> Tensor:
        """The sum of the parts' entropies, [n]."""
        return _total([part.entropy() for part in leaves(self.parts)])

    @property
    def mode(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  a tree
        """The parts' modes."""
        return tree_map(mode, self.parts)


def num_outputs(space: gymnasium.Space[Any]) -> int:
    """How many numbers a network gives for one action of `space`: see `as_distribution`."""
    if isinstance(space, Discrete | MultiDiscrete):
        return sum(choices(space))
    if isinstance(space, Dict | Tuple):
        return sum(num_outputs(part) for part in parts_of(space).values())
    return math.prod(space.shape or ()) * (2 if isinstance(space, Box) else 1)


def as_distribution(output: Any, space: gymnasium.Space[Any]) -> Distribution:
    """The action distribution of a network's output.

    Args:
        output: A `Distribution` as it is. For Discrete logits [n, A]; for MultiDiscrete those of all its numbers, one
            after the other; for MultiBinary the logit of each 1; for Box [n, 2 A] (means, then log standard
            deviations) or a pair (mean, log std), each [n, A] or broadcastable to it. For Dict or Tuple the outputs of
            its parts by name or place, or in one tensor, one after the other.
        space: The action space.

    Raises:
        ValueError: The output does not fit the space.
    """
    if isinstance(output, Distribution):
        return output
    if isinstance(space, Discrete):
        return LeanCategorical(_logits(output, space))
    if isinstance(space, Box):
        return _gaussian(output, space)
    if isinstance(space, MultiDiscrete):
        return Independent(LeanCategorical(_padded(_logits(output, space), choices(space))), 1, validate_args=False)
    if isinstance(space, MultiBinary):
        logits = _logits(output, space)
        pairs = torch.stack([torch.zeros_like(logits), logits], dim=-1)
        return Independent(LeanCategorical(pairs), 1, validate_args=False)
    if isinstance(space, Dict | Tuple):
        return _joint(output, space)
    raise ValueError(f"action space {space} is not supported")


def sample(distribution: Distribution, rng: torch.Generator) -> Any:
    """One action per row, drawn from `rng` alone."""
    if isinstance(distribution, Joint):
        return tree_map(lambda part: sample(part, rng), distribution.parts)
    if isinstance(distribution, SquashedGaussian):
        return distribution.squashed(sample(distribution.base, rng))
    base = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if isinstance(base, Categorical):
        return _inverse_cdf(base.probs, rng)
    if isinstance(base, Normal):
        noise = torch.randn(base.mean.shape, generator=rng, dtype=base.mean.dtype).to(base.mean.device)
        return base.mean + base.stddev * noise
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        return distribution.sample()


def mode(distribution: Distribution) -> Any:
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


def _logits(output: Any, space: gymnasium.Space[Any]) -> Tensor:
    number = num_outputs(space)
    if (
        not isinstance(output, Tensor)
        or not output.is_floating_point()
        or output.ndim != 2
        or output.shape[1] != number
    ):
        raise ValueError(
            f"the policy gave {_describe(output)} for {space}: expected logits of shape [n, {number}] or a "
            "torch.distributions.Distribution"
        )
    return output


def _padded(logits: Tensor, counts: list[int]) -> Tensor:
    """Logits of several numbers [n, sum of the counts] as [n, K, largest count]; what is not there has -inf."""
    if len(set(counts)) == 1:
        return logits.reshape(-1, len(counts), counts[0])
    first, columns = 0, []
    for count in counts:
        columns.append([*range(first, first + count), *([sum(counts)] * (max(counts) - count))])
        first += count
    return torch.nn.functional.pad(logits, (0, 1), value=-math.inf)[:, columns]


def _joint(output: Any, space: gymnasium.Space[Any]) -> Joint:
    parts = parts_of(space)
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] == num_outputs(space):
        widths = [num_outputs(part) for part in parts.values()]
        outputs: Any = dict(zip(parts, output.split(widths, dim=1), strict=True))
    elif isinstance(output, tuple):
        outputs = dict(enumerate(output))
    else:
        outputs = output
    if not isinstance(outputs, Mapping) or outputs.keys() != parts.keys():
        raise ValueError(
            f"the policy gave {_describe(output)} for {space}: expected [n, {num_outputs(space)}], the outputs of its "
            "parts one after the other, or a dictionary (a tuple, for a Tuple) with the output of each part"
        )
    distributions = {key: as_distribution(outputs[key], part) for key, part in parts.items()}
    return Joint(distributions if isinstance(space, Dict) else tuple(distributions.values()))


def _total(parts: list[Tensor]) -> Tensor:
    total: Tensor = torch.stack(parts).sum(0)
    return total


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
    if isinstance(output, Mapping):
        return f"a dictionary of {sorted(output)}"
    if isinstance(output, tuple) and len(output) == 2:
        return f"a pair of {_describe(output[0])} and {_describe(output[1])}"
    return f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def parameters_of(distribution: Distribution) -> Tensor:
    """One row of numbers per distribution, from which `kl_to_parameters` computes the KL.

    Raises:
        ValueError: Neither Categorical nor Gaussian.
    """
    if isinstance(distribution, Joint):
        return torch.cat([parameters_of(part) for part in leaves(distribution.parts)], dim=1)
    base = _base(distribution)
    if isinstance(base, Categorical):
        return base.logits.flatten(1)
    return torch.cat(_gaussian_parameters(base), dim=1)


def kl_to_parameters(distribution: Distribution, parameters: Tensor, counts: Tensor) -> Tensor:
    """KL(distribution || the one with those parameters) per row, in nats; 0 without gradient where none counts.

    Raises:
        ValueError: Neither Categorical nor Gaussian.
    """
    if isinstance(distribution, Joint):
        parts = leaves(distribution.parts)
        widths = [parameters_of(part).shape[1] for part in parts]
        of_parts = zip(parts, parameters.split(widths, dim=1), strict=True)
        return _total([kl_to_parameters(part, some, counts) for part, some in of_parts])
    base = _base(distribution)
    if isinstance(base, Categorical):
        logits = _or(base.logits, counts, 0.0)
        kl = categorical_kl(logits, _or(parameters.reshape(base.logits.shape), counts, 0.0))
        return kl if kl.ndim == 1 else kl.sum(-1)
    mean, std = _gaussian_parameters(base)
    reference_mean, reference_std = parameters.chunk(2, dim=1)
    return gaussian_kl(
        _or(mean, counts, 0.0), _or(std, counts, 1.0), _or(reference_mean, counts, 0.0), _or(reference_std, counts, 1.0)
    )


def _or(rows: Tensor, counts: Tensor, otherwise: float) -> Tensor:
    """Before the equation and not after it: a row that does not count may hold anything, and 0 x NaN is NaN."""
    return torch.where(counts.reshape(-1, *[1] * (rows.ndim - 1)), rows, otherwise)


def _base(distribution: Distribution) -> Distribution:
    """Without what changes no KL: the grouping of dimensions, and a bijection."""
    if isinstance(distribution, SquashedGaussian):
        return _base(distribution.base)
    return distribution.base_dist if isinstance(distribution, Independent) else distribution


def _gaussian_parameters(base: Distribution) -> tuple[Tensor, Tensor]:
    if not isinstance(base, Normal):
        raise ValueError(f"the KL of {type(base).__name__} has no closed form here: use K3 instead of ExactKL")
    return base.mean.flatten(1), base.stddev.flatten(1)
