"""Advantages among steps of a group that were taken in nearly the same state."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpolib.functional._checks import check_lengths, check_not_negative, check_shape
from grpolib.functional.segments import at_least_float32, episode_ids, repeat_on_steps

ROWS_AT_A_TIME = 1024
"""Rows of the distance matrix that are held at once: memory grows with the steps, not with their square."""

EXACT = "donot_use_mm_for_euclid_dist"
"""Distances by matrix product are faster, and miss that equal states are 0 apart."""


@torch.no_grad()
def anchor_state_advantages(
    scores: Float[Tensor, " S"],
    states: Float[Tensor, "S D"],
    lengths: Int[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    *,
    radius: float,
) -> Float[Tensor, " S"]:
    """Return each step's score minus the mean score of its group's other episodes' steps in nearly the same state.

        Aᵢₜ = Gᵢₜ - mean {Gⱼₖ : j ≠ i, j of i's group, ‖sⱼₖ - sᵢₜ‖ ≤ radius};   0 where there is none

    Args:
        scores: G, e.g. each step's reward to go, in any unit.
        states: s, scaled so that one radius fits every dimension.
        lengths: Steps of each episode, ≥ 1, summing to S.
        group_ids: Group of each episode, in any order.
        radius: ≥ 0, in the unit of `states`.

    Returns:
        Advantages in the unit of `scores`, float32 or wider, no gradient.

    Raises:
        ValueError: Shapes differ, a length is below 1, or the radius is negative.

    Source: GiGPO (arXiv:2505.10978), section 4.2, with a radius in place of equality, own episode left out.

    >>> scores, states = torch.tensor([3.0, 1.0, 5.0]), torch.tensor([[0.0], [0.1], [9.0]])
    >>> anchor_state_advantages(scores, states, torch.tensor([1, 2]), torch.tensor([0, 0]), radius=1.0)
    tensor([ 2., -2.,  0.])
    """
    check_not_negative("radius", radius)
    check_lengths(lengths, scores=scores)
    check_shape(lengths.shape, "lengths", group_ids=group_ids)
    if states.ndim != 2 or len(states) != len(scores):
        raise ValueError(f"states has shape {list(states.shape)}: give one row per step, [{len(scores)}, D]")
    of_step, groups = episode_ids(lengths), repeat_on_steps(group_ids, lengths)
    advantages = torch.zeros_like(scores, dtype=torch.float64)
    for group in group_ids.unique():
        rows = (groups == group).nonzero().squeeze(1)
        for some in rows.split(ROWS_AT_A_TIME):
            near = torch.cdist(states[some], states[rows], compute_mode=EXACT) <= radius
            near &= of_step[some, None] != of_step[None, rows]
            advantages[some] = _minus_mean_of_near(scores[some].double(), scores[rows].double(), near)
    return advantages.to(at_least_float32(scores))


def _minus_mean_of_near(own: Float[Tensor, " s"], others: Float[Tensor, " S"], near: Tensor) -> Float[Tensor, " s"]:
    # Differences before the mean: among equal scores they are exactly 0.
    differences = torch.where(near, own[:, None] - others[None, :], 0.0)
    return differences.sum(1) / near.sum(1).clamp(min=1)
