"""Ragged structure on flat data: steps in episodes, episodes in groups.

A row of a flat tensor is a step, an episode is a run of rows described by its length, and a segment is any
set of rows that share an id. Statistics of segments are float64 whatever the input, with ids in any order.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


class Groups(NamedTuple):
    """Group membership with the ids renumbered 0..M-1, so that they can index.

    Attributes:
        labels: The distinct ids as they were given, ascending.
        ids: For each row, the place of its label in `labels`.
        sizes: Rows of each group, ≥ 1.
    """

    labels: Int[Tensor, " M"]
    ids: Int[Tensor, " N"]
    sizes: Int[Tensor, " M"]


def index_groups(group_ids: Int[Tensor, " N"]) -> Groups:
    """Renumber ids that may come in any order and with gaps.

    >>> index_groups(torch.tensor([7, 2, 7])).ids
    tensor([1, 0, 1])
    """
    labels, ids, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return Groups(labels, ids, sizes)


def offsets(lengths: Int[Tensor, " N"]) -> Int[Tensor, " N_plus_1"]:
    """Return the first row of each episode, and the number of rows at the end.

    >>> offsets(torch.tensor([2, 1, 3]))
    tensor([0, 2, 3, 6])
    """
    return torch.nn.functional.pad(lengths.long().cumsum(0), (1, 0))


def repeat_on_steps(values: Shaped[Tensor, " N"], lengths: Int[Tensor, " N"]) -> Shaped[Tensor, " S"]:
    """Repeat each episode's value on its steps; differentiable.

    >>> repeat_on_steps(torch.tensor([0.5, 2.0]), torch.tensor([2, 1]))
    tensor([0.5000, 0.5000, 2.0000])
    """
    return torch.repeat_interleave(values, lengths.long())


def episode_ids(lengths: Int[Tensor, " N"]) -> Int[Tensor, " S"]:
    """Return the episode of each step.

    >>> episode_ids(torch.tensor([2, 1, 3]))
    tensor([0, 0, 1, 2, 2, 2])
    """
    return repeat_on_steps(torch.arange(len(lengths), device=lengths.device), lengths)


def timesteps(lengths: Int[Tensor, " N"]) -> Int[Tensor, " S"]:
    """Return the place of each step in its episode, from 0.

    >>> timesteps(torch.tensor([2, 1, 3]))
    tensor([0, 1, 0, 0, 1, 2])
    """
    starts = repeat_on_steps(offsets(lengths)[:-1], lengths)
    return torch.arange(len(starts), device=lengths.device) - starts


def steps_remaining(lengths: Int[Tensor, " N"]) -> Int[Tensor, " S"]:
    """Return how many steps of its episode follow each step, as int32: half the memory traffic of int64.

    >>> steps_remaining(torch.tensor([2, 1, 3]))
    tensor([1, 0, 0, 2, 1, 0], dtype=torch.int32)
    """
    bounds = offsets(lengths)
    changes = torch.full((int(bounds[-1]),), -1, dtype=torch.int32, device=lengths.device)
    changes[bounds[:-1]] = (lengths - 1).int()  # up from the 0 of the episode before
    return changes.cumsum(0, dtype=torch.int32)


def longest(lengths: Int[Tensor, " N"]) -> int:
    """Return the longest length, 0 where there is no episode."""
    return int(lengths.max()) if len(lengths) else 0


def member_of(row: int, ids: Int[Tensor, " N"]) -> int:
    """Return the place of a row among the rows of its segment, from 0."""
    return int((ids[:row] == ids[row]).sum())


def segment_counts(ids: Int[Tensor, " N"], num_segments: int) -> Int[Tensor, " M"]:
    """Count the rows of each segment."""
    return torch.bincount(ids, minlength=num_segments)


def segment_sums(values: Shaped[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int) -> Float[Tensor, " M"]:
    """Add the rows of each segment in float64, in row order; 0 for an empty segment; differentiable."""
    zeros = torch.zeros(num_segments, dtype=torch.float64, device=values.device)
    return zeros.index_add(0, ids, values.double())


def segment_minima(values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int) -> Float[Tensor, " M"]:
    """Return the smallest value of each segment; 0 for an empty one."""
    return _segment_extremes(values, ids, num_segments, "amin")


def segment_maxima(values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int) -> Float[Tensor, " M"]:
    """Return the largest value of each segment; 0 for an empty one."""
    return _segment_extremes(values, ids, num_segments, "amax")


def _segment_extremes(
    values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int, reduce: str
) -> Float[Tensor, " M"]:
    zeros = values.new_zeros(num_segments)
    return zeros.scatter_reduce(0, ids, values, reduce, include_self=False)


def is_constant(values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int) -> Bool[Tensor, " M"]:
    """Say for each segment whether all its values are equal (no tolerance); an empty one is constant.

    >>> is_constant(torch.tensor([0.2, 0.2, 0.2, 0.3]), torch.tensor([0, 0, 1, 1]), 2)
    tensor([ True, False])
    """
    lowest = segment_minima(values, ids, num_segments)
    return lowest == segment_maxima(values, ids, num_segments)


def above_segment_minimum(
    values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int
) -> Float[Tensor, " N"]:
    """Return each value minus its segment's smallest, in float64.

    Every statistic starts here: the mean of k equal floats need not be that float, that of k zeros is zero.
    """
    values = values.double()
    return segment_minima(values, ids, num_segments)[ids].neg_().add_(values)


def segment_deviations(values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int) -> Float[Tensor, " N"]:
    """Return each value minus the mean of its segment, in float64; exactly 0 where all are equal.

    >>> segment_deviations(torch.tensor([1.0, 0.2, 3.0, 0.2]), torch.tensor([0, 1, 0, 1]), 2)
    tensor([-1.,  0.,  1.,  0.], dtype=torch.float64)
    """
    above = above_segment_minimum(values, ids, num_segments)
    means = segment_sums(above, ids, num_segments) / segment_counts(ids, num_segments)
    return above - means[ids]


def segment_stds(
    values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int, *, correction: int = 0
) -> Float[Tensor, " M"]:
    """Return the standard deviation of each segment in float64; exactly 0 where all are equal.

    >>> segment_stds(torch.tensor([1.0, 0.2, 3.0, 0.2]), torch.tensor([0, 1, 0, 1]), 2)
    tensor([1., 0.], dtype=torch.float64)
    """
    deviations = segment_deviations(values, ids, num_segments)
    return root_mean_squares(deviations, ids, num_segments, correction=correction)


def root_mean_squares(
    deviations: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int, *, correction: int = 0
) -> Float[Tensor, " M"]:
    """Return √(Σ d² / (n - correction)) of each segment: its std, where d are its deviations."""
    divisors = segment_counts(ids, num_segments) - correction
    return (segment_sums(deviations.square(), ids, num_segments) / divisors).sqrt()


def overall_std(values: Float[Tensor, " N"], *, correction: int = 0) -> Float[Tensor, ""]:
    """Return the standard deviation of all values in float64; exactly 0 where all are equal.

    >>> overall_std(torch.tensor([1.0, 3.0]))
    tensor(1., dtype=torch.float64)
    """
    if not len(values):
        return torch.zeros((), dtype=torch.float64, device=values.device)
    above = values.double() - values.double().min()
    squares = (above - above.mean()).square()
    return (squares.sum() / (len(values) - correction)).sqrt()


def at_least_float32(*tensors: Tensor) -> torch.dtype:
    """Return the widest dtype of the tensors, float32 or wider."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
