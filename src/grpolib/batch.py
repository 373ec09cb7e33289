"""The central data structure: ragged episodes of several groups, end to end, without padding.

Axis letters are the same in the whole library: S steps, N episodes, M groups, G group size, T padded
length, A actions. A row is a step, an episode is a run of rows, a group is a run of episodes.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from grpolib.functional import discounted_returns, episode_ids, offsets, timesteps
from grpolib.minibatch import (
    EpisodeInputs,
    InputsT,
    Minibatch,
    MinibatchPlan,
    Reduction,
    StepInputs,
    minibatches_of_steps,
    select_rows,
    step_weights,
)
from grpolib.trees import Tree, join, move, num_rows, select

PER_STEP = (
    "log_probs",
    "rewards",
    "loss_mask",
    "reward_mask",
    "reference_log_probs",
    "penalties",
    "reward_factors",
    "values",
)
"""Scalars of steps."""
PER_EPISODE = ("lengths", "group_ids", "terminated", "scored", "final_values", "first_timesteps")
"""Scalars of episodes."""
KINDS = {
    "truth values": ("terminated", "loss_mask", "scored", "reward_mask"),
    "whole numbers": ("lengths", "group_ids", "first_timesteps"),
    "floating-point numbers": (
        "rewards",
        "log_probs",
        "reference_log_probs",
        "penalties",
        "reward_factors",
        "values",
        "final_values",
    ),
}
"""What scalars are: numbers in a mask's place would index instead of choose."""


@dataclass(frozen=True, kw_only=True)
class GroupBatch(Generic[InputsT]):
    """Episodes of several groups, end to end, no padding; checked once, when it is made.

    Args:
        inputs: What the policy, the critic and `AnchorState` read.
        log_probs: log pi_old(a|s) at sampling time; nats, no gradient.
        rewards: As the environment gave them; never edited.
        lengths: Steps per episode, >= 1; they sum to S.
        group_ids: Group of each episode: 0..M-1, non-decreasing; groups may be uneven.
        terminated: False where an episode was cut by a time limit or a rollout's end: a critic bootstraps.
        final_inputs: The true observation after each episode's last step; read by a critic alone.
        loss_mask: False leaves the numerator and the denominator of the loss.
        scored: False takes an episode out of its group's statistics and out of the loss.
        reward_mask: Where a process reward was given (0 is not "none"); read by `ProcessSupervision` alone.
        reference_log_probs: Filled by `ReferencePolicy.annotate`.
        reference_parameters: The reference's distribution parameters; filled where `ExactKL` is a loss.
        penalties: KL in the reward, coefficient x k(log_probs, reference), detached.
        reward_factors: What rewards are multiplied by before they are compared, > 0; filled by `ScaledRewards`.
        values: Critic values of each step's observation.
        final_values: Critic values of the final observations.
        first_timesteps: Where in its true episode a segment starts.
        metrics: What the sampler counted; one-dimensional tensors by name.

    Raises:
        ValueError: Shapes do not fit together, a length is below 1, ids are not sorted from 0, or a reward
            or log-probability that counts is not finite.
    """

    inputs: InputsT
    log_probs: Float[Tensor, " S"]
    rewards: Float[Tensor, " S"]
    lengths: Int[Tensor, " N"]
    group_ids: Int[Tensor, " N"]
    terminated: Bool[Tensor, " N"]
    final_inputs: Tree | None = None
    loss_mask: Bool[Tensor, " S"] | None = None
    scored: Bool[Tensor, " N"] | None = None
    reward_mask: Bool[Tensor, " S"] | None = None
    reference_log_probs: Float[Tensor, " S"] | None = None
    reference_parameters: Float[Tensor, "S P"] | None = None
    penalties: Float[Tensor, " S"] | None = None
    reward_factors: Float[Tensor, " S"] | None = None
    values: Float[Tensor, " S"] | None = None
    final_values: Float[Tensor, " N"] | None = None
    first_timesteps: Int[Tensor, " N"] | None = None
    metrics: Mapping[str, Shaped[Tensor, " k"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        self._check_lengths()
        self._check_shapes()
        self._check_groups()
        of_scored = None if self.scored is None else self.scored[self.episode_ids]
        self._check_finite("reward", self.rewards, of_scored)
        self._check_finite("log-probability", self.log_probs, self.counted)

    @property
    def num_steps(self) -> int:
        """S."""
        return len(self.rewards)

    @property
    def num_episodes(self) -> int:
        """N."""
        return len(self.lengths)

    @cached_property
    def num_groups(self) -> int:
        """M."""
        return int(self.group_ids[-1]) + 1

    @cached_property
    def offsets(self) -> Int[Tensor, " N_plus_1"]:
        """First row of each episode, and S."""
        return offsets(self.lengths)

    @cached_property
    def episode_ids(self) -> Int[Tensor, " S"]:
        """The episode of each step."""
        return episode_ids(self.lengths)

    @cached_property
    def timesteps(self) -> Int[Tensor, " S"]:
        """Steps since the start of the row's episode, from 0."""
        return timesteps(self.lengths)

    @cached_property
    def episode_returns(self) -> Float[Tensor, " N"]:
        """Undiscounted sum of each episode's rewards, in reward units."""
        return discounted_returns(self.rewards, self.lengths)[self.offsets[:-1]]

    @property
    def penalized_rewards(self) -> Float[Tensor, " S"]:
        """Rewards minus the KL penalties, times the factors, where there are any: what estimators read."""
        rewards = self.rewards if self.penalties is None else self.rewards - self.penalties
        return rewards if self.reward_factors is None else rewards * self.reward_factors

    @cached_property
    def counted(self) -> Bool[Tensor, " S"] | None:
        """Steps that the loss counts: unmasked, of a scored episode; None where all of them do."""
        if self.scored is None:
            return self.loss_mask
        of_scored = self.scored[self.episode_ids]
        return of_scored if self.loss_mask is None else of_scored & self.loss_mask

    def minibatches(
        self,
        advantages: Float[Tensor, " S"],
        reduction: Reduction,
        plan: MinibatchPlan,
        rng: torch.Generator,
        *,
        returns: Float[Tensor, " S"] | None = None,
        max_length: int | None = None,
    ) -> Iterator[Minibatch[InputsT]]:
        """The minibatches of all epochs, each shuffled anew; one in which no step counts is left out.

        By step, the whole batch's weights are multiplied by S / s, so that every minibatch is an unbiased
        estimate of the whole. By episode, weights are computed from the minibatch's own episodes.

        Args:
            advantages: One per step, as an estimator returned them.
            reduction: What "mean" means; see `step_weights`.
            plan: Epochs, size and unit of the minibatches.
            rng: Draws the permutations (a CPU generator).
            returns: Targets of a value loss.
            max_length: Divisor of the "constant" reduction.
        """
        self._check_estimated("advantages", advantages)
        if returns is not None:
            self._check_estimated("returns", returns)
        weights = step_weights(self.lengths, reduction, loss_mask=self.counted, max_length=max_length)
        whole = self.as_minibatch(advantages, weights.to(advantages.dtype), returns)
        if plan.by == "step":
            minibatches = minibatches_of_steps(whole, plan, rng)
        else:
            minibatches = self._by_episode(whole, reduction, plan, rng, max_length)
        if self.counted is None:
            return minibatches
        return (minibatch for minibatch in minibatches if bool(minibatch.weights.any()))

    def as_minibatch(
        self, advantages: Float[Tensor, " S"], weights: Float[Tensor, " S"], returns: Float[Tensor, " S"] | None
    ) -> Minibatch[InputsT]:
        """All episodes as one minibatch with these weights."""
        return Minibatch(
            inputs=self.inputs,
            old_log_probs=self.log_probs,
            advantages=advantages,
            weights=weights,
            reference_log_probs=self.reference_log_probs,
            reference_parameters=self.reference_parameters,
            returns=returns,
            lengths=self.lengths,
        )

    def to(self, device: torch.device) -> "GroupBatch[InputsT]":
        """The same batch on another device; itself where it is there already."""
        if self.rewards.device == device:
            return self
        moved = {
            f.name: value.to(device) for f in dataclasses.fields(self) if hasattr(value := getattr(self, f.name), "to")
        }
        if self.final_inputs is not None:
            moved["final_inputs"] = move(self.final_inputs, device)
        return dataclasses.replace(self, **moved)

    def _check_estimated(self, name: str, values: Any) -> None:
        if not isinstance(values, Tensor) or not values.is_floating_point():
            kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(f"{name} are {kind}: an estimator gives a tensor of floating-point numbers")
        if values.shape != self.rewards.shape:
            raise ValueError(
                f"{name} have shape {tuple(values.shape)}, the batch has {self.num_steps} steps: an estimator "
                "gives one advantage per step"
            )
        self._check_finite(name, values, self.counted)

    def _by_episode(
        self,
        whole: Minibatch[InputsT],
        reduction: Reduction,
        plan: MinibatchPlan,
        rng: torch.Generator,
        max_length: int | None,
    ) -> Iterator[Minibatch[InputsT]]:
        for _ in range(plan.epochs):
            order = torch.randperm(self.num_episodes, generator=rng).to(self.lengths.device)
            for episodes in order.split(int(plan.size or self.num_episodes)):
                steps = self.steps_of(episodes)
                lengths = self.lengths[episodes]
                weights = step_weights(
                    lengths, reduction, loss_mask=select_rows(self.counted, steps), max_length=max_length
                )
                yield whole.select(
                    steps,
                    inputs=self.inputs.select_episodes(episodes, steps),
                    weights=weights.to(whole.weights.dtype),
                    lengths=lengths,
                )

    def steps_of(self, episodes: Int[Tensor, " n"]) -> Int[Tensor, " s"]:
        """The rows of whole episodes, in the order of `episodes`."""
        lengths = self.lengths[episodes]
        return self.offsets[episodes][episode_ids(lengths)] + timesteps(lengths)

    def _check_types(self) -> None:
        for kind, names in KINDS.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not (isinstance(value, Tensor) and _kind(value) == kind):
                    given = value.dtype if isinstance(value, Tensor) else type(value).__name__
                    raise TypeError(f"{name} is {given}: give a tensor of {kind}")

    def _check_lengths(self) -> None:
        if self.lengths.ndim != 1 or len(self.lengths) == 0:
            raise ValueError(f"lengths have shape {tuple(self.lengths.shape)}: a batch needs at least one episode")
        if bool((self.lengths < 1).any()):
            episode = int((self.lengths < 1).nonzero()[0])
            raise ValueError(f"episode {episode} has {int(self.lengths[episode])} steps: every episode has >= 1")

    def _check_shapes(self) -> None:
        num_steps = int(self.lengths.sum())
        for names, rows in ((PER_STEP, num_steps), (PER_EPISODE, len(self.lengths))):
            for name in names:
                value = getattr(self, name)
                if value is not None and value.shape != (rows,):
                    raise ValueError(
                        f"{name} has shape {tuple(value.shape)}, expected ({rows},): scalars per step or "
                        "episode are one-dimensional and lengths sum to the number of steps"
                    )
        if self.final_inputs is not None and num_rows(self.final_inputs) != self.num_episodes:
            raise ValueError(
                f"final_inputs have {num_rows(self.final_inputs)} rows, expected one for each of the "
                f"{self.num_episodes} episodes"
            )
        if isinstance(self.inputs, StepInputs | EpisodeInputs) and len(self.inputs) != num_steps:
            raise ValueError(f"inputs have {len(self.inputs)} rows, lengths sum to {num_steps} steps")

    def _check_groups(self) -> None:
        change = self.group_ids.diff(prepend=self.group_ids.new_zeros(1))
        if int(self.group_ids[0]) != 0 or bool(((change != 0) & (change != 1)).any()):
            raise ValueError(f"group_ids must count 0, 1, ... without gaps, sorted; got {self.group_ids[:20].tolist()}")

    def _check_finite(self, name: str, values: Tensor, where: Tensor | None) -> None:
        bad = ~values.isfinite() if where is None else ~values.isfinite() & where
        if bool(bad.any()):
            step = int(bad.nonzero()[0])
            episode = int(self.episode_ids[step])
            group = int(self.group_ids[episode])
            member = episode - int((self.group_ids < group).sum())
            raise ValueError(
                f"{name} {float(values[step])} at step {int(self.timesteps[step])} of member {member} of group "
                f"{group}: what counts must be finite; set scored=False to leave an episode out"
            )


def _kind(values: Tensor) -> str:
    if values.dtype == torch.bool:
        return "truth values"
    if values.is_complex():
        return "complex numbers"
    return "floating-point numbers" if values.is_floating_point() else "whole numbers"


def concatenate(batches: Sequence[GroupBatch[InputsT]]) -> GroupBatch[InputsT]:
    """The groups of several batches, one batch after the other; group ids go on counting."""
    first, *rest = batches
    shifts = [0]
    for batch in batches[:-1]:
        shifts.append(shifts[-1] + batch.num_groups)
    joined: dict[str, Any] = {
        f.name: _joined(f.name, [getattr(batch, f.name) for batch in batches])
        for f in dataclasses.fields(first)
        if f.name not in ("inputs", "group_ids", "metrics")
    }
    names = sorted({name for batch in batches for name in batch.metrics})
    return GroupBatch(
        inputs=first.inputs.concatenate([batch.inputs for batch in rest]),
        group_ids=torch.cat([batch.group_ids + shift for batch, shift in zip(batches, shifts, strict=True)]),
        metrics={name: torch.cat([batch.metrics[name] for batch in batches]) for name in names},
        **joined,
    )


def select_groups(batch: GroupBatch[InputsT], groups: Int[Tensor, " m"]) -> GroupBatch[InputsT]:
    """The groups with these numbers, counted anew from 0 in this order; `metrics` stay as they are.

    Args:
        batch: Where they are taken from.
        groups: Distinct numbers in 0..M-1, at least one.
    """
    members = [(batch.group_ids == group).nonzero().squeeze(1) for group in groups.tolist()]
    episodes = torch.cat(members)
    steps = batch.steps_of(episodes)
    rows: dict[str, Any] = {name: select_rows(getattr(batch, name), steps) for name in PER_STEP}
    rows |= {name: select_rows(getattr(batch, name), episodes) for name in PER_EPISODE}
    rows["group_ids"] = torch.arange(len(members), device=episodes.device).repeat_interleave(
        torch.tensor([len(some) for some in members], device=episodes.device)
    )
    return dataclasses.replace(
        batch,
        inputs=batch.inputs.select_episodes(episodes, steps),
        final_inputs=None if batch.final_inputs is None else select(batch.final_inputs, episodes),
        reference_parameters=select_rows(batch.reference_parameters, steps),
        **rows,
    )


def _joined(name: str, values: list[Any]) -> Any:
    given = [value for value in values if value is not None]
    if len(given) not in (0, len(values)):
        raise ValueError(f"{name} is there in {len(given)} of {len(values)} batches: give it in all of them or in none")
    return join(given) if given else None
