"""Advantage estimators: configuration here, equations in `grpolib.functional`.

An estimator is a callable from a `GroupBatch` to one advantage per step, without gradient. It reads
rewards - penalties. Episodes with `scored=False` stay out of every statistic and get 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from grpolib import functional as F  # noqa: N812
from grpolib.batch import GroupBatch

Batch: TypeAlias = GroupBatch[Any]


class AdvantageEstimator(Protocol):
    """From a batch to advantages; a plain function will do.

    One that also offers `returns(batch) -> [S]` gives a value loss its targets.
    """

    def __call__(self, batch: Batch, /) -> Float[Tensor, " S"]:
        """One advantage per step, without gradient."""
        ...


@dataclass(frozen=True)
class GroupZScore:
    """GRPO's outcome supervision: an episode's return, standardised within its group, on each of its steps.

    Args:
        epsilon: Added to the standard deviation, in reward units, >= 0.
        correction: 0 divides the variance by G, 1 by G - 1.
        scale: "group" (GRPO), "batch" (one standard deviation for all groups) or "none" (Dr. GRPO).

    Source: DeepSeekMath (arXiv:2402.03300) section 4.1.2.
    """

    epsilon: float = 1e-4
    correction: int = 0
    scale: Literal["group", "batch", "none"] = "group"

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step, in group standard deviations."""
        return _of_episodes(
            batch,
            lambda scores, group_ids: F.group_z_scores(
                scores, group_ids, epsilon=self.epsilon, correction=self.correction, scale=self.scale
            ),
        )


@dataclass(frozen=True)
class LeaveOneOut:
    """RLOO: an episode's return minus the mean return of the others of its group.

    Source: Ahmadian et al. (arXiv:2402.14740) section 3.
    """

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step, in reward units."""
        return _of_episodes(batch, F.leave_one_out_advantages)


@dataclass(frozen=True)
class ProcessSupervision:
    """GRPO's process supervision: step rewards standardised over the group, then summed from each step on.

    Args:
        discount: gamma of the sum, in [0, 1]; the paper has none.
        epsilon: Added to the standard deviation, in reward units, >= 0.
        correction: 0 divides the variance by the number of step rewards, 1 by one less.

    Source: DeepSeekMath (arXiv:2402.03300) section 4.1.3.
    """

    discount: float = 1.0
    epsilon: float = 1e-4
    correction: int = 0

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step."""
        if batch.reward_mask is not None and batch.penalties is not None:
            raise ValueError(
                "penalties fall on every step and reward_mask names the steps that have a reward: use a KL term in "
                "the loss instead of ReferencePolicy(penalty=...)"
            )

        def advantages(rewards: Tensor, lengths: Tensor, group_ids: Tensor, steps: Tensor) -> Tensor:
            return F.process_supervision_advantages(
                rewards,
                lengths,
                group_ids,
                discount=self.discount,
                epsilon=self.epsilon,
                correction=self.correction,
                reward_mask=None if batch.reward_mask is None else batch.reward_mask[steps],
            )

        return _of_steps(batch, advantages)


@dataclass(frozen=True)
class TimestepLeaveOneOut:
    """Reward to go at t, minus the mean reward to go at t of the other members that are still running.

    Where none is, minus the mean over all steps of the other members. The start is shared, so at t = 0 this
    baseline is RLOO's; later it is a baseline for "t steps after this start". It needs no critic and gives each
    step its own credit.

    Args:
        discount: gamma, in [0, 1].
        normalize: Divide once by the standard deviation of the batch's advantages; their mean stays.
    """

    discount: float = 0.99
    normalize: bool = True

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step."""
        return _of_steps(
            batch,
            lambda rewards, lengths, group_ids, steps: F.timestep_leave_one_out_advantages(
                rewards, lengths, group_ids, discount=self.discount, normalize=self.normalize
            ),
        )


def estimator_rewards(batch: Batch) -> Float[Tensor, " S"]:
    """What estimators read: rewards minus the KL penalties."""
    return batch.rewards if batch.penalties is None else batch.rewards - batch.penalties


def comparable_episodes(batch: Batch) -> Tensor | None:
    """Indices of the scored episodes, without those left alone in their group; None where that is all."""
    if batch.scored is None:
        return None
    sizes = torch.bincount(batch.group_ids)
    scored = torch.bincount(batch.group_ids[batch.scored], minlength=batch.num_groups)
    left_alone = (scored < 2) & (scored < sizes)
    return (batch.scored & ~left_alone[batch.group_ids]).nonzero().squeeze(1)


def _of_episodes(batch: Batch, advantages: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Advantages of the episodes' returns, each repeated on its episode's steps."""
    returns = F.discounted_returns(estimator_rewards(batch), batch.lengths)[batch.offsets[:-1]]
    episodes = comparable_episodes(batch)
    if episodes is None:
        return advantages(returns, batch.group_ids)[batch.episode_ids]
    of_episodes = torch.zeros_like(returns)
    if len(episodes):
        of_episodes[episodes] = advantages(returns[episodes], batch.group_ids[episodes]).to(returns.dtype)
    return of_episodes[batch.episode_ids]


def _of_steps(batch: Batch, advantages: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Advantages of the comparable episodes' steps, from (rewards, lengths, group_ids, rows); 0 elsewhere."""
    rewards = estimator_rewards(batch)
    episodes = comparable_episodes(batch)
    if episodes is None:
        return advantages(rewards, batch.lengths, batch.group_ids, torch.arange(batch.num_steps))
    of_steps = torch.zeros_like(rewards)
    if len(episodes):
        steps = batch.steps_of(episodes)
        of_steps[steps] = advantages(rewards[steps], batch.lengths[episodes], batch.group_ids[episodes], steps).to(
            rewards.dtype
        )
    return of_steps
