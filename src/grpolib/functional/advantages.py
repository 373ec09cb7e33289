"""Advantages that compare an episode, or a step, with the other members of its group.

No gradient flows through any of them. Group ids come in any order; statistics are float64.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpolib.functional._checks import (
    check_choice,
    check_fraction,
    check_lengths,
    check_not_negative,
    check_shape,
    first_not_finite,
)
from grpolib.functional.returns import discounted_returns
from grpolib.functional.segments import (
    Groups,
    above_segment_minimum,
    at_least_float32,
    episode_ids,
    index_groups,
    longest,
    member_of,
    overall_std,
    repeat_on_steps,
    root_mean_squares,
    segment_counts,
    segment_deviations,
    segment_sums,
    timesteps,
)

Scale = Literal["group", "batch", "none"]

FLOOR = 0.1
"""The least scale of a time step, as a share of the batch's: noise alone is not blown up to full size."""


@torch.no_grad()
def group_z_scores(
    scores: Float[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    *,
    epsilon: float = 1e-4,
    correction: int = 0,
    scale: Scale = "group",
) -> Float[Tensor, " N"]:
    """Standardise each score within its group.

        Âᵢ = (rᵢ - mean(r)) / (std + ε),   r = the scores of i's group

    A group whose scores are all equal gets exactly 0, whatever ε.

    Args:
        scores: One finite score per episode, e.g. its return, in any unit.
        group_ids: Group of each episode, in any order.
        epsilon: ε ≥ 0, in the unit of `scores`.
        correction: 0 divides the squares by the number of scores n, 1 by n - 1.
        scale: Which std: the "group"'s, the whole "batch"'s (about its own mean), or "none": centred only.

    Returns:
        Advantages with mean 0 in each group, float32 or wider; without unit, or that of `scores` for "none".

    Raises:
        ValueError: Shapes differ, a group has one member, a score is not finite, or an option is unknown.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2; "none": Dr. GRPO (arXiv:2503.20783), section 3.2.

    >>> group_z_scores(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 0]), epsilon=0.0)
    tensor([ 1., -1.,  1., -1.])
    """
    check_choice("scale", scale, ("group", "batch", "none"))
    check_not_negative("epsilon", epsilon)
    check_choice("correction", correction, (0, 1))
    groups = _checked_groups(scores, group_ids)
    advantages = segment_deviations(scores, groups.ids, len(groups.labels))
    if scale == "group":
        stds = root_mean_squares(advantages, groups.ids, len(groups.labels), correction=correction)
        advantages = _divided(advantages, stds[groups.ids], epsilon)
    elif scale == "batch":
        advantages = _divided(advantages, overall_std(scores, correction=correction), epsilon)
    return advantages.to(at_least_float32(scores))


@torch.no_grad()
def leave_one_out_advantages(scores: Float[Tensor, " N"], group_ids: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return each score minus the mean score of the other members of its group.

        Âᵢ = rᵢ - 1/(G-1) Σ_{j≠i} rⱼ = G/(G-1) (rᵢ - mean(r))

    Args:
        scores: One finite score per episode, e.g. its return, in any unit.
        group_ids: Group of each episode, in any order.

    Returns:
        Advantages in the unit of `scores`, float32 or wider; exactly 0 where a group's scores are all equal.

    Raises:
        ValueError: Shapes differ, a group has one member, or a score is not finite.

    Source: RLOO, Ahmadian et al. (arXiv:2402.14740); Kool et al., Buy 4 REINFORCE Samples (2019).

    >>> leave_one_out_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 0]))
    tensor([ 1.0000, -0.5000, -0.5000])
    """
    groups = _checked_groups(scores, group_ids)
    advantages = _minus_mean_of_others(scores, groups.ids, len(groups.labels))
    return advantages.to(at_least_float32(scores))


@torch.no_grad()
def process_supervision_advantages(
    rewards: Float[Tensor, " S"],
    lengths: Int[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    *,
    discount: float = 1.0,
    epsilon: float = 1e-4,
    correction: int = 0,
    reward_mask: Bool[Tensor, " S"] | None = None,
) -> Float[Tensor, " S"]:
    """Return the reward to go of the step rewards, standardised over all step rewards of the group.

        r̃ₜ = (rₜ - mean(R)) / (std(R) + ε),   Âₜ = Σ_{k≥t} γ^{k-t} r̃ₖ,   R = every step reward of the group

    A step without a reward (False in `reward_mask`) adds nothing to either sum; a reward of 0 does.

    Args:
        rewards: Reward of each step, finite where given, in any unit.
        lengths: Steps of each episode, ≥ 1, summing to S.
        group_ids: Group of each episode, in any order.
        discount: γ in [0, 1]; the paper has 1.
        epsilon: ε ≥ 0, in the unit of `rewards`.
        correction: 0 divides the squares by the number of step rewards n, 1 by n - 1.
        reward_mask: True where a step reward was given; None means everywhere.

    Returns:
        Advantages without unit, float32 or wider; exactly 0 where a group's step rewards are all equal.

    Raises:
        ValueError: As `group_z_scores`, but for groups with fewer than two step rewards (one member may do).

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.3.

    >>> rewards, lengths, group_ids = torch.tensor([1.0, 0.0, 1.0, 2.0]), torch.tensor([2, 2]), torch.tensor([0, 0])
    >>> process_supervision_advantages(rewards, lengths, group_ids, epsilon=0.0)
    tensor([-1.4142, -1.4142,  1.4142,  1.4142])
    """
    check_fraction("discount", discount)
    check_not_negative("epsilon", epsilon)
    check_choice("correction", correction, (0, 1))
    given = torch.ones_like(rewards, dtype=torch.bool) if reward_mask is None else reward_mask
    check_lengths(lengths, rewards=rewards, reward_mask=given)
    check_shape(lengths.shape, "lengths", group_ids=group_ids)
    groups = index_groups(group_ids)
    _check_step_rewards_finite(rewards, lengths, groups, given)
    ids = repeat_on_steps(groups.ids, lengths)[given]
    _check_step_reward_counts(ids, groups)
    deviations = segment_deviations(rewards[given], ids, len(groups.labels))
    stds = root_mean_squares(deviations, ids, len(groups.labels), correction=correction)
    standardised = torch.zeros_like(rewards, dtype=torch.float64)
    standardised[given] = _divided(deviations, stds[ids], epsilon)
    return discounted_returns(standardised, lengths, discount=discount).to(at_least_float32(rewards))


@torch.no_grad()
def timestep_leave_one_out_advantages(
    rewards: Float[Tensor, " S"],
    lengths: Int[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    *,
    discount: float,
    normalize: bool | Literal["timestep"] = True,
) -> Float[Tensor, " S"]:
    """Return each step's reward to go minus that of the group's other members at the same time step.

        Âᵢₜ = Gᵢₜ - mean {Gⱼₜ : j ≠ i, j still running at t},   Gᵢₜ = Σ_{k≥t} γ^{k-t} rᵢₖ

    Where no other member runs any more, the mean is over all steps of the other members.

    Divided per time step, by a scale of its own, the steps after which members hardly differ any more count as much
    as those that decide between flight and crash:

        Âᵢₜ / √(mean {Âⱼₜ² : j still running at t} + 0.1² mean {Âⱼₖ² : all j, k})

    Args:
        rewards: Reward of each step, finite, in any unit.
        lengths: Steps of each episode, ≥ 1, summing to S.
        group_ids: Group of each episode, in any order.
        discount: γ in [0, 1].
        normalize: True divides once by the std of all S advantages (divisor S), whose mean is not subtracted;
            "timestep" divides as above, per group and time step. A scale of 0 gives zeros.

    Returns:
        Advantages without unit, or in that of `rewards` unless normalised; float32 or wider.

    Raises:
        ValueError: Shapes differ, a length is below 1, a group has one member, a reward is not finite,
            `discount` lies outside [0, 1], or `normalize` is another word.

    Source: this library; the leave-one-out mean of RLOO (arXiv:2402.14740) taken per time step.

    >>> rewards, lengths = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([2, 1])
    >>> timestep_leave_one_out_advantages(
    ...     rewards, lengths, torch.tensor([0, 0]), discount=1.0, normalize=False
    ... )
    tensor([-2., -3.,  2.])
    """
    check_choice("normalize", normalize, (True, False, "timestep"))
    check_lengths(lengths, rewards=rewards)
    check_shape(lengths.shape, "lengths", group_ids=group_ids)
    groups = index_groups(group_ids)
    _check_group_sizes(groups)
    _check_step_rewards_finite(rewards, lengths, groups)
    to_go = discounted_returns(rewards.double(), lengths, discount=discount)
    advantages = _minus_others_at_same_time(to_go, lengths, groups)
    if normalize == "timestep":
        advantages = _divided_per_timestep(advantages, lengths, groups)
    elif normalize:
        advantages = _divided(advantages, overall_std(advantages), 0.0)
    return advantages.to(at_least_float32(rewards))


def _minus_others_at_same_time(
    to_go: Float[Tensor, " S"], lengths: Int[Tensor, " N"], groups: Groups
) -> Float[Tensor, " S"]:
    cells, num_cells = _cells(lengths, groups)
    alone = (segment_counts(cells, num_cells) == 1)[cells]
    at_same_time = _minus_mean_of_others(to_go, cells, num_cells)
    del cells
    return torch.where(alone, _minus_all_steps_of_others(to_go, lengths, groups), at_same_time)


def _cells(lengths: Int[Tensor, " N"], groups: Groups) -> tuple[Int[Tensor, " S"], int]:
    """Return a number for each step's group and time step together, and how many there may be."""
    horizon = longest(lengths)
    return repeat_on_steps(groups.ids, lengths) * horizon + timesteps(lengths), len(groups.labels) * horizon


def _divided_per_timestep(
    advantages: Float[Tensor, " S"], lengths: Int[Tensor, " N"], groups: Groups
) -> Float[Tensor, " S"]:
    if not len(advantages):
        return advantages
    advantages = advantages / advantages.abs().max()  # so that no square overflows
    cells, num_cells = _cells(lengths, groups)
    scales = torch.hypot(root_mean_squares(advantages, cells, num_cells)[cells], FLOOR * _root_mean_square(advantages))
    return _divided(advantages, scales, 0.0)


def _root_mean_square(values: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    return values.square().mean().sqrt()


def _minus_mean_of_others(
    values: Float[Tensor, " N"], ids: Int[Tensor, " N"], num_segments: int
) -> Float[Tensor, " N"]:
    """Return each value minus the mean of the rest of its segment; 0 among equals, NaN where alone."""
    above = above_segment_minimum(values, ids, num_segments)
    others = (segment_counts(ids, num_segments) - 1)[ids]
    # In place: a batch of any size costs a few temporaries less.
    means_of_others = segment_sums(above, ids, num_segments)[ids].sub_(above).div_(others)
    return above.sub_(means_of_others)


def _minus_all_steps_of_others(
    values: Float[Tensor, " S"], lengths: Int[Tensor, " N"], groups: Groups
) -> Float[Tensor, " S"]:
    """Return each step's value minus the mean over all steps of its group's other episodes."""
    num_groups = len(groups.labels)
    above = above_segment_minimum(values, repeat_on_steps(groups.ids, lengths), num_groups)
    own_sums = segment_sums(above, episode_ids(lengths), len(lengths))
    other_sums = segment_sums(own_sums, groups.ids, num_groups)[groups.ids] - own_sums
    other_steps = segment_sums(lengths, groups.ids, num_groups)[groups.ids] - lengths
    return above - repeat_on_steps(other_sums / other_steps, lengths)


def _divided(advantages: Float[Tensor, " N"], stds: Float[Tensor, "*N"], epsilon: float) -> Float[Tensor, " N"]:
    """Divide by std + ε; exactly 0 where the std is 0, also for ε = 0."""
    return torch.where(stds > 0, advantages / (stds + epsilon), 0.0)


def _checked_groups(scores: Float[Tensor, " N"], group_ids: Int[Tensor, " N"]) -> Groups:
    check_shape(torch.Size([len(group_ids)]), "group_ids", scores=scores, group_ids=group_ids)
    groups = index_groups(group_ids)
    row = first_not_finite(scores)
    if row is not None:
        raise ValueError(
            f"group {int(group_ids[row])}, member {member_of(row, groups.ids)}: "
            f"the score is {float(scores[row])}. Return a finite score, or leave the episode out as unscored."
        )
    _check_group_sizes(groups)
    return groups


def _check_group_sizes(groups: Groups) -> None:
    alone = (groups.sizes == 1).nonzero()
    if alone.numel():
        raise ValueError(
            f"group {int(groups.labels[alone[0]])} has one member, and there is nothing to compare it with: "
            "sample at least 2 episodes a group, or use an estimator that needs no group."
        )


def _check_step_rewards_finite(
    rewards: Float[Tensor, " S"],
    lengths: Int[Tensor, " N"],
    groups: Groups,
    given: Bool[Tensor, " S"] | None = None,
) -> None:
    row = first_not_finite(rewards, given)
    if row is None:
        return
    episode = int(episode_ids(lengths)[row])
    group, member = groups.labels[groups.ids[episode]], member_of(episode, groups.ids)
    raise ValueError(
        f"group {int(group)}, member {member}, step {int(timesteps(lengths)[row])}: the reward is "
        f"{float(rewards[row])}. Return a finite reward, or leave the episode out as unscored."
    )


def _check_step_reward_counts(ids: Int[Tensor, " R"], groups: Groups) -> None:
    counts = segment_counts(ids, len(groups.labels))
    few = (counts < 2).nonzero()
    if few.numel():
        raise ValueError(
            f"group {int(groups.labels[few[0]])} has {int(counts[few[0]])} step reward(s), a std needs two: "
            "check reward_mask, or give more steps a reward."
        )
