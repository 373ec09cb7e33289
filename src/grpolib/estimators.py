"""Advantage estimators: configuration here, equations in `grpolib.functional`.

An estimator is a callable from a `GroupBatch` to one advantage per step, without gradient. It reads
`batch.penalized_rewards`, rewards - penalties. Episodes with `scored=False` stay out of every statistic and get 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from grpolib import functional as F  # noqa: N812
from grpolib.batch import GroupBatch
from grpolib.functional._checks import check_choice, check_fraction, check_not_negative
from grpolib.functional.segments import overall_std
from grpolib.trees import features

Batch: TypeAlias = GroupBatch[Any]
TWO_EPISODES = (torch.zeros(2), torch.zeros(2, dtype=torch.long))
"""Scores and group ids of the smallest group."""


@runtime_checkable
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

    def __post_init__(self) -> None:
        # The equation checks its settings; asked here, a wrong one fails where it is written. So below.
        self._scores(*TWO_EPISODES)

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step, in group standard deviations."""
        return _of_episodes(batch, self._scores)

    def _scores(self, scores: Tensor, group_ids: Tensor) -> Tensor:
        return F.group_z_scores(scores, group_ids, epsilon=self.epsilon, correction=self.correction, scale=self.scale)


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

    def __post_init__(self) -> None:
        F.process_supervision_advantages(
            TWO_EPISODES[0],
            torch.ones(2, dtype=torch.long),
            TWO_EPISODES[1],
            discount=self.discount,
            epsilon=self.epsilon,
            correction=self.correction,
        )

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
        normalize: True divides once by the standard deviation of the batch's advantages; their mean stays.
            "timestep" divides by a scale of the group's time step, so that late steps, after which members hardly
            differ, are not drowned by early ones.
    """

    discount: float = 0.99
    normalize: bool | Literal["timestep"] = True

    def __post_init__(self) -> None:
        check_fraction("discount", self.discount)
        check_choice("normalize", self.normalize, (True, False, "timestep"))

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step."""
        return _of_steps(
            batch,
            lambda rewards, lengths, group_ids, steps: F.timestep_leave_one_out_advantages(
                rewards, lengths, group_ids, discount=self.discount, normalize=self.normalize
            ),
        )


@dataclass(frozen=True)
class RewardToGo:
    """Discounted reward to go, standardised over the steps of the group, of the batch, or of a time step.

    Args:
        over: "group": all steps of a group. "batch": all steps there are, blind to groups. "timestep": the steps
            of a group at the same time; a member that runs alone gets 0.
        discount: gamma, in [0, 1].
        epsilon: Added to the standard deviation, in reward units, >= 0.
        correction: 0 divides the variance by the number of steps, 1 by one less.

    Source: "batch": arXiv:2511.03527; "timestep": EmbodiChain's GRPO.
    """

    over: Literal["group", "batch", "timestep"] = "group"
    discount: float = 0.99
    epsilon: float = 1e-8
    correction: int = 0

    def __post_init__(self) -> None:
        if self.over not in ("group", "batch", "timestep"):
            raise ValueError(f"over is {self.over!r}: choose 'group', 'batch' or 'timestep'")
        check_fraction("discount", self.discount)
        GroupZScore(self.epsilon, self.correction)

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step, in standard deviations."""

        def advantages(rewards: Tensor, lengths: Tensor, group_ids: Tensor, steps: Tensor) -> Tensor:
            to_go = F.discounted_returns(rewards, lengths, discount=self.discount)
            ids = self._ids(lengths, group_ids)
            compared = torch.bincount(ids)[ids] > 1
            scores = torch.zeros_like(to_go)
            scores[compared] = F.group_z_scores(
                to_go[compared], ids[compared], epsilon=self.epsilon, correction=self.correction
            )
            return scores

        return _of_steps(batch, advantages)

    def _ids(self, lengths: Tensor, group_ids: Tensor) -> Tensor:
        of_step = group_ids[F.episode_ids(lengths)]
        if self.over == "batch":
            return torch.zeros_like(of_step)
        if self.over == "group":
            return of_step
        return of_step * lengths.max() + F.timesteps(lengths)


@dataclass(frozen=True)
class AnchorState:
    """GiGPO for continuous states: the episode's z-score plus a term among steps in nearly the same state.

    The step term is the reward to go minus its mean over the steps of the group's other episodes within
    `radius`, divided once by the batch's standard deviation of that term; where no step is that near, 0.

    Args:
        radius: In standard deviations of the observations over the batch, per dimension.
        weight: Of the step term, >= 0.
        discount: gamma of the reward to go, in [0, 1].
        epsilon: Added to the standard deviation of the episode term, in reward units.

    Source: GiGPO (arXiv:2505.10978), eqs. 3 to 8.
    """

    radius: float = 0.5
    weight: float = 1.0
    discount: float = 0.99
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        check_fraction("discount", self.discount)
        check_not_negative("radius", self.radius)
        check_not_negative("weight", self.weight)
        GroupZScore(self.epsilon)

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step."""
        states = _scaled(features(batch.inputs.observations).float(), batch)

        def step_term(rewards: Tensor, lengths: Tensor, group_ids: Tensor, steps: Tensor) -> Tensor:
            to_go = F.discounted_returns(rewards, lengths, discount=self.discount)
            return F.anchor_state_advantages(to_go, states[steps], lengths, group_ids, radius=self.radius)

        near = _of_steps(batch, step_term)
        return GroupZScore(epsilon=self.epsilon)(batch) + self.weight * _divided_by_std(near, batch.counted)


@dataclass(frozen=True)
class GAE:
    """Generalised advantages from a critic's values; bootstraps where an episode was cut, not where it ended.

    Args:
        discount: gamma, in [0, 1].
        gae_lambda: lambda, in [0, 1].
        normalize: Centre the batch's advantages and divide them by their standard deviation, over counted steps.

    Source: Schulman et al. (arXiv:1506.02438) eq. 16.
    """

    discount: float = 0.99
    gae_lambda: float = 0.95
    normalize: bool = True
    needs_critic = True

    def __post_init__(self) -> None:
        check_fraction("discount", self.discount)
        check_fraction("gae_lambda", self.gae_lambda)
        if not isinstance(self.normalize, bool):
            raise TypeError(f"normalize is {self.normalize!r}: give True or False")

    def __call__(self, batch: Batch) -> Float[Tensor, " S"]:
        """One advantage per step, normalised or in reward units."""
        advantages = self._advantages(batch)
        if self.normalize:
            counted = advantages if batch.counted is None else advantages[batch.counted]
            advantages = _divided_by_std(advantages - counted.sum() / max(len(counted), 1), batch.counted)
        return _zero_where_unscored(advantages, batch)

    def returns(self, batch: Batch) -> Float[Tensor, " S"]:
        """Targets of a value loss: advantages before normalisation, plus values."""
        values = _annotated(batch.values)
        return self._advantages(batch) + values

    def _advantages(self, batch: Batch) -> Tensor:
        return F.generalized_advantages(
            batch.penalized_rewards,
            _annotated(batch.values),
            _annotated(batch.final_values),
            batch.lengths,
            batch.terminated,
            discount=self.discount,
            gae_lambda=self.gae_lambda,
        )


def comparable_episodes(batch: Batch) -> Tensor | None:
    """Indices of the scored episodes, without those left alone in their group; None where that is all."""
    if batch.scored is None:
        return None
    sizes = torch.bincount(batch.group_ids)
    scored = torch.bincount(batch.group_ids[batch.scored], minlength=batch.num_groups)
    left_alone = (scored < 2) & (scored < sizes)
    return (batch.scored & ~left_alone[batch.group_ids]).nonzero().squeeze(1)


def needs_critic(piece: Any) -> bool:
    """Whether an estimator or a loss reads a critic's values."""
    return bool(getattr(piece, "needs_critic", False))


def _annotated(values: Tensor | None) -> Tensor:
    if values is None:
        raise ValueError("GAE reads a critic's values and the batch has none: give critic=Critic(module)")
    return values


def _scaled(observations: Tensor, batch: Batch) -> Tensor:
    """Each dimension divided by its standard deviation over the scored episodes; a constant one as it is."""
    scored = observations if batch.scored is None else observations[batch.scored[batch.episode_ids]]
    if len(scored) == 0:
        return observations
    std = scored.std(0, correction=0)
    return observations / torch.where(std > 0, std, torch.ones_like(std))


def _divided_by_std(advantages: Tensor, counted: Tensor | None) -> Tensor:
    """Divided by the standard deviation of the counted steps; zeros where that is 0."""
    std = overall_std(advantages if counted is None else advantages[counted]).to(advantages.dtype)
    return torch.where(std > 0, advantages / std, 0.0)


def _zero_where_unscored(advantages: Tensor, batch: Batch) -> Tensor:
    return advantages if batch.scored is None else torch.where(batch.scored[batch.episode_ids], advantages, 0.0)


def _check_groups(batch: Batch) -> None:
    if batch.first_timesteps is not None:
        raise ValueError(
            "segments of a StepSampler are no groups, there is nothing to compare them with: use GAE with a critic, "
            "or sample groups with GroupSampler"
        )


def _of_episodes(batch: Batch, advantages: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Advantages of the episodes' returns, each repeated on its episode's steps."""
    _check_groups(batch)
    returns = F.discounted_returns(batch.penalized_rewards, batch.lengths)[batch.offsets[:-1]]
    episodes = comparable_episodes(batch)
    if episodes is None:
        return advantages(returns, batch.group_ids)[batch.episode_ids]
    of_episodes = torch.zeros_like(returns)
    if len(episodes):
        of_episodes[episodes] = advantages(returns[episodes], batch.group_ids[episodes]).to(returns.dtype)
    return of_episodes[batch.episode_ids]


def _of_steps(batch: Batch, advantages: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Advantages of the comparable episodes' steps, from (rewards, lengths, group_ids, rows); 0 elsewhere."""
    _check_groups(batch)
    rewards = batch.penalized_rewards
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
