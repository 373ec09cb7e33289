"""Numbers to watch while training. Every result is without gradient and free of NaN on empty input."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpolib.functional._checks import check_shape
from grpolib.functional.segments import at_least_float32, index_groups, longest, overall_std, segment_stds
from grpolib.functional.surrogate import clip_bounds


@torch.no_grad()
def clip_fractions(
    ratios: Float[Tensor, " S"],
    advantages: Float[Tensor, " S"],
    *,
    clip_epsilon: float,
    clip_epsilon_high: float | None = None,
    mask: Bool[Tensor, " S"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the fractions of steps whose gradient the lower and the upper clip bound stop.

        low = mean(ρ < 1 - ε_low and A < 0),   high = mean(ρ > 1 + ε_high and A > 0)

    A ratio outside the bounds with the other sign of A is not clipped, so it does not count.

    Args:
        ratios: ρ.
        advantages: A.
        clip_epsilon: ε_low in [0, 1).
        clip_epsilon_high: ε_high ≥ 0; None takes ε_low.
        mask: True for the steps that count; None means all. The others may hold anything.

    Returns:
        (low, high) in [0, 1]; 0 where no step counts.

    Raises:
        ValueError: Shapes differ or a bound is out of range.

    >>> ratios, advantages = torch.tensor([1.5, 0.5, 1.5, 0.5]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    >>> clip_fractions(ratios, advantages, clip_epsilon=0.2)
    (tensor(0.2500), tensor(0.2500))
    """
    low, high = clip_bounds(clip_epsilon, clip_epsilon_high)
    check_shape(ratios.shape, "ratios", advantages=advantages)
    counted = _counted(ratios, mask)
    num_steps = counted.sum().clamp(min=1)
    below = counted & (ratios < low) & (advantages < 0)
    above = counted & (ratios > high) & (advantages > 0)
    return below.sum() / num_steps, above.sum() / num_steps


@torch.no_grad()
def effective_sample_size(ratios: Float[Tensor, " S"], *, mask: Bool[Tensor, " S"] | None = None) -> Float[Tensor, ""]:
    """Return the effective share of the steps under importance weights.

        ESS / S = (Σ ρ)² / (S Σ ρ²)

    Args:
        ratios: ρ ≥ 0, e.g. from `importance_ratio`.
        mask: True for the steps that count; None means all. The others may hold anything.

    Returns:
        A number in (0, 1], 1 where all ratios are equal; 0 where no step counts or all ratios are 0.

    Raises:
        ValueError: Shapes differ.

    Source: Owen, Monte Carlo Theory, Methods and Examples (2013), section 9.3, eq. 9.13, divided by S.

    >>> effective_sample_size(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor(0.2500)
    """
    counted = _counted(ratios, mask)
    weights = torch.where(counted, ratios.double(), 0.0)
    squares = counted.sum() * weights.square().sum()
    share = torch.where(squares > 0, weights.sum().square() / squares, 0.0)
    return share.clamp(max=1.0).to(at_least_float32(ratios))


@torch.no_grad()
def explained_variance(
    values: Float[Tensor, " S"], returns: Float[Tensor, " S"], *, mask: Bool[Tensor, " S"] | None = None
) -> Float[Tensor, ""]:
    """Return the share of the variance of the returns that the values explain.

        1 - Var(returns - values) / Var(returns)

    Args:
        values: What the critic said, in the unit of the return.
        returns: What came.
        mask: True for the steps that count; None means all. The others may hold anything.

    Returns:
        1 for a perfect critic, 0 for a constant one, negative for a worse one; 0 where the returns do not
        vary, as there is nothing to explain then.

    Raises:
        ValueError: Shapes differ.

    >>> explained_variance(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0]))
    tensor(0.7500)
    """
    check_shape(returns.shape, "returns", values=values)
    counted = _counted(returns, mask)
    values, returns = values[counted].double(), returns[counted]
    std, unexplained = overall_std(returns), overall_std(returns - values)
    explained = torch.where(std > 0, 1 - (unexplained / std).square(), 0.0)
    return explained.to(at_least_float32(returns))


def living_peers(lengths: Int[Tensor, " N"], group_ids: Int[Tensor, " N"]) -> Float[Tensor, " T"]:
    """Return how many members of a group still run at each time step, on average over the groups.

        peersₜ = 1/M |{i : lengthᵢ > t}|,   t = 0 .. T - 1,   T the longest length

    Below 2, a baseline from the other members at the same time step has little to stand on.

    Args:
        lengths: Steps of each episode, ≥ 1.
        group_ids: Group of each episode, in any order.

    Returns:
        Mean number of running members per time step; empty where there is no episode.

    Raises:
        ValueError: Shapes differ.

    >>> living_peers(torch.tensor([2, 1, 3, 3]), torch.tensor([0, 0, 1, 1]))
    tensor([2.0000, 1.5000, 1.0000])
    """
    check_shape(lengths.shape, "lengths", group_ids=group_ids)
    horizon = longest(lengths)
    ended = torch.bincount(lengths, minlength=horizon + 1).cumsum(0)[:horizon]
    return (len(lengths) - ended) / max(len(index_groups(group_ids).labels), 1)


@torch.no_grad()
def group_std(scores: Float[Tensor, " N"], group_ids: Int[Tensor, " N"]) -> Float[Tensor, " M"]:
    """Return the population standard deviation of the scores within each group, by ascending id.

    Args:
        scores: One score per episode, in any unit.
        group_ids: Group of each episode, in any order.

    Returns:
        One std per group (divisor: its size), in the unit of `scores`, float32 or wider; exactly 0 where its
        scores are all equal, so that `group_std(...) == 0` finds the groups without signal.

    Raises:
        ValueError: Shapes differ.

    >>> group_std(torch.tensor([1.0, 0.2, 3.0, 0.2]), torch.tensor([0, 1, 0, 1]))
    tensor([1., 0.])
    """
    check_shape(torch.Size([len(group_ids)]), "group_ids", scores=scores, group_ids=group_ids)
    groups = index_groups(group_ids)
    return segment_stds(scores, groups.ids, len(groups.labels)).to(at_least_float32(scores))


def _counted(steps: Float[Tensor, " S"], mask: Bool[Tensor, " S"] | None) -> Bool[Tensor, " S"]:
    if mask is None:
        return torch.ones_like(steps, dtype=torch.bool)
    check_shape(steps.shape, "the per-step input", mask=mask)
    return mask
