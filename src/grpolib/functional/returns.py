"""Discounted sums along the steps of each episode: reward to go and generalised advantages."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpolib.functional._checks import check_fraction, check_lengths, check_shape
from grpolib.functional.segments import at_least_float32, longest, offsets, steps_remaining

BLOCK = 30_000
"""Steps, about, that one pass after the other goes over: they stay in a core's cache, and below the 32,768 from which
torch shares a pass among threads, which wait for each other a hundred times as long where another program runs."""


@torch.no_grad()
def discounted_returns(
    rewards: Float[Tensor, " S"], lengths: Int[Tensor, " N"], *, discount: float = 1.0
) -> Float[Tensor, " S"]:
    """Return the discounted reward to go of each step.

        Gₜ = Σ_{k≥t} γ^{k-t} rₖ,   k up to the last step of t's episode

    An episode's values have the same bits alone and in any batch; a NaN stays in its episode.

    Args:
        rewards: Reward of each step, in any unit.
        lengths: Steps of each episode, ≥ 1, summing to S.
        discount: γ in [0, 1].

    Returns:
        Reward to go in the unit of `rewards`, float32 or wider, no gradient.

    Raises:
        ValueError: Shapes differ, a length is below 1, or `discount` lies outside [0, 1].

    Source: Sutton and Barto, Reinforcement Learning (2018), section 3.3, eq. 3.8.

    >>> discounted_returns(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([3, 1]), discount=0.5)
    tensor([3., 4., 4., 8.])
    """
    check_fraction("discount", discount)
    check_lengths(lengths, rewards=rewards)
    returns = torch.empty_like(rewards, dtype=at_least_float32(rewards))
    for steps, episodes in _blocks(lengths):
        terms = rewards[steps].to(torch.float64, copy=True)
        returns[steps] = _discounted_suffix_sums(terms, lengths[episodes], discount)
    return returns


@torch.no_grad()
def generalized_advantages(
    rewards: Float[Tensor, " S"],
    values: Float[Tensor, " S"],
    final_values: Float[Tensor, " N"],
    lengths: Int[Tensor, " N"],
    terminated: Bool[Tensor, " N"],
    *,
    discount: float,
    gae_lambda: float,
) -> Float[Tensor, " S"]:
    """Return the generalised advantage estimate of each step.

        δₜ = rₜ + γ V(sₜ₊₁) - V(sₜ),   Âₜ = Σ_{k≥t} (γλ)^{k-t} δₖ,   k up to the last step of t's episode

    After an episode's last step, V(sₜ₊₁) is 0 if it terminated and its final value if it was cut.

    Args:
        rewards: Reward of each step, in any unit.
        values: V(sₜ) of each step, in the unit of the return.
        final_values: V of the observation after each episode's last step; unread where it terminated.
        lengths: Steps of each episode, ≥ 1, summing to S.
        terminated: False where a time limit or the rollout's end cut the episode.
        discount: γ in [0, 1].
        gae_lambda: λ in [0, 1]: 0 is the one-step error, 1 the whole return minus the value.

    Returns:
        Advantages in the unit of the return, float32 or wider, no gradient; plus `values`: value targets.

    Raises:
        ValueError: Shapes differ, a length is below 1, or `discount` or `gae_lambda` lies outside [0, 1].

    Source: Schulman et al., Generalized Advantage Estimation (arXiv:1506.02438), section 3, eq. 16.

    >>> rewards, values, final_values = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]), torch.tensor([4.0])
    >>> lengths, cut = torch.tensor([2]), torch.tensor([False])  # errors 1 + 0.5 · 2 - 0 and 1 + 0.5 · 4 - 2
    >>> generalized_advantages(rewards, values, final_values, lengths, cut, discount=0.5, gae_lambda=1.0)
    tensor([2.5000, 1.0000])
    """
    check_fraction("discount", discount)
    check_fraction("gae_lambda", gae_lambda)
    check_lengths(lengths, rewards=rewards, values=values)
    check_shape(lengths.shape, "lengths", final_values=final_values, terminated=terminated)
    advantages = torch.empty_like(rewards, dtype=at_least_float32(rewards, values))
    for steps, episodes in _blocks(lengths):
        errors = _one_step_errors(
            rewards[steps], values[steps], final_values[episodes], lengths[episodes], terminated[episodes], discount
        )
        advantages[steps] = _discounted_suffix_sums(errors, lengths[episodes], discount * gae_lambda)
    return advantages


def _blocks(lengths: Int[Tensor, " N"]) -> Iterator[tuple[slice, slice]]:
    """Steps and episodes of consecutive parts, each of whole episodes and small enough to stay in a core's cache."""
    bounds = offsets(lengths)
    counts = ((bounds[1:] - 1) // BLOCK).unique_consecutive(return_counts=True)[1]
    episodes = offsets(counts)
    steps = bounds[episodes]
    for (start, end), (first, last) in zip(pairwise(steps.tolist()), pairwise(episodes.tolist()), strict=True):
        yield slice(start, end), slice(first, last)


def _one_step_errors(
    rewards: Float[Tensor, " S"],
    values: Float[Tensor, " S"],
    final_values: Float[Tensor, " N"],
    lengths: Int[Tensor, " N"],
    terminated: Bool[Tensor, " N"],
    discount: float,
) -> Float[Tensor, " S"]:
    values = values.double()
    next_values = values.roll(-1)
    # `where`, not a product with the flag: the final value of a terminated episode may be NaN.
    next_values[offsets(lengths)[1:] - 1] = torch.where(terminated, 0.0, final_values.double())
    return next_values.mul_(discount).add_(rewards).sub_(values)


def _discounted_suffix_sums(
    terms: Float[Tensor, " S"], lengths: Int[Tensor, " N"], factor: float
) -> Float[Tensor, " S"]:
    """Add to each step, in place, its episode's later terms times factor^distance: ⌈log₂ longest⌉ passes.

    After the pass of distance d, row t holds the weighted sum of the 2d terms from t on. Each pass is the
    same product, choice and sum for every row (nothing fused), so the batch around an episode cannot change
    its bits.
    """
    remaining = steps_remaining(lengths)
    scaled, outside = torch.empty_like(terms), torch.empty_like(remaining, dtype=torch.bool)
    distance, longest_length = 1, longest(lengths)
    while distance < longest_length and factor != 0:
        rows = len(terms) - distance
        later = torch.mul(terms[distance:], factor, out=scaled[:rows])
        later.masked_fill_(torch.lt(remaining[:rows], distance, out=outside[:rows]), 0.0)
        terms[:rows].add_(later)
        distance, factor = 2 * distance, factor * factor
    return terms
