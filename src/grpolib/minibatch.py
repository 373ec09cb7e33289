"""Minibatches: what the losses read for one optimizer step, and what "mean" means there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpolib.functional import episode_ids, offsets, timesteps
from grpolib.functional._checks import check_whole, check_whole_or_none
from grpolib.trees import Tree, join, move, num_rows, select

Rows: TypeAlias = Tensor | slice
"""Which rows: their numbers, or a range."""
GATHERED = 64
"""Minibatches gathered at once: several times cheaper than one by one, and no second copy of the batch."""
Reduction = Literal["episode_mean", "step_mean", "constant"]


SelfT = TypeVar("SelfT")


@runtime_checkable
class Inputs(Protocol):
    """What a policy reads to score the steps of a batch; selected by step or by whole episode."""

    def select_steps(self: SelfT, steps: Rows) -> SelfT:
        """The inputs of single steps, in the order of `steps`."""
        ...

    def select_episodes(self: SelfT, episodes: Int[Tensor, " n"], steps: Int[Tensor, " s"]) -> SelfT:
        """The inputs of whole episodes, whose rows are `steps`."""
        ...

    def concatenate(self: SelfT, others: Sequence[SelfT]) -> SelfT:
        """These inputs followed by those of `others`."""
        ...

    def to(self: SelfT, device: torch.device) -> SelfT:
        """The same inputs on another device."""
        ...


InputsT = TypeVar("InputsT", bound=Inputs)


@dataclass(frozen=True)
class StepInputs:
    """Observations and actions of a memoryless policy: one row a step, a tree each where their space is nested."""

    observations: Tree
    actions: Tree

    def __post_init__(self) -> None:
        _check_rows(self.observations, self.actions)

    def __len__(self) -> int:
        return num_rows(self.actions)

    def select_steps(self, steps: Rows) -> "StepInputs":
        """The inputs of single steps, in the order of `steps`."""
        return StepInputs(select(self.observations, steps), select(self.actions, steps))

    def select_episodes(self, episodes: Int[Tensor, " n"], steps: Int[Tensor, " s"]) -> "StepInputs":
        """The inputs of whole episodes, whose rows are `steps`."""
        return self.select_steps(steps)

    def concatenate(self, others: "Sequence[StepInputs]") -> "StepInputs":
        """These inputs followed by those of `others`."""
        parts = (self, *others)
        return StepInputs(join([part.observations for part in parts]), join([part.actions for part in parts]))

    def to(self, device: torch.device) -> "StepInputs":
        """The same inputs on another device."""
        return StepInputs(move(self.observations, device), move(self.actions, device))


@dataclass(frozen=True)
class EpisodeInputs:
    """Observations and actions of a recurrent policy: whole episodes end to end, and the state that each starts from.

    Args:
        observations: One row a step.
        actions: One row a step.
        lengths: Steps per episode.
        states: One row an episode: the policy's state before its first step.
    """

    observations: Tree
    actions: Tree
    lengths: Int[Tensor, " N"]
    states: Tree

    def __post_init__(self) -> None:
        _check_rows(self.observations, self.actions)

    def __len__(self) -> int:
        return num_rows(self.actions)

    def select_steps(self, steps: Rows) -> "EpisodeInputs":
        """Raise: a state comes from all the steps before."""
        raise ValueError(
            "a recurrent policy reads whole episodes: set plan=MinibatchPlan(epochs, episodes, by='episode')"
        )

    def select_episodes(self, episodes: Int[Tensor, " n"], steps: Int[Tensor, " s"]) -> "EpisodeInputs":
        """The inputs of whole episodes, whose rows are `steps`."""
        return EpisodeInputs(
            select(self.observations, steps),
            select(self.actions, steps),
            self.lengths[episodes],
            select(self.states, episodes),
        )

    def concatenate(self, others: "Sequence[EpisodeInputs]") -> "EpisodeInputs":
        """These inputs followed by those of `others`."""
        parts = (self, *others)
        return EpisodeInputs(
            join([part.observations for part in parts]),
            join([part.actions for part in parts]),
            torch.cat([part.lengths for part in parts]),
            join([part.states for part in parts]),
        )

    def to(self, device: torch.device) -> "EpisodeInputs":
        """The same inputs on another device."""
        observations, actions, states = (move(tree, device) for tree in (self.observations, self.actions, self.states))
        return EpisodeInputs(observations, actions, self.lengths.to(device), states)


def _check_rows(observations: Tree, actions: Tree) -> None:
    if num_rows(observations) != num_rows(actions):
        raise ValueError(f"{num_rows(observations)} observations and {num_rows(actions)} actions: one row a step each")


@dataclass(frozen=True)
class MinibatchPlan:
    """How often the batch is gone through, and in what pieces.

    Args:
        epochs: Passes over the batch, >= 1; each draws a new permutation.
        size: Steps (or episodes) per optimizer step; None takes the whole batch. A short last one is kept.
        by: "step" for memoryless policies; "episode" keeps episodes whole, which a ratio per episode,
            a recurrent policy and text need.
    """

    epochs: int = 4
    size: int | None = 64
    by: Literal["step", "episode"] = "step"

    def __post_init__(self) -> None:
        check_whole(epochs=self.epochs)
        check_whole_or_none(size=self.size)
        if self.epochs < 1 or (self.size is not None and self.size < 1):
            raise ValueError(f"epochs and size must be at least 1, got epochs={self.epochs}, size={self.size}")
        if self.by not in ("step", "episode"):
            raise ValueError(f"by must be 'step' or 'episode', got {self.by!r}")


@dataclass(frozen=True, kw_only=True)
class Minibatch(Generic[InputsT]):
    """What the losses read for one optimizer step: s steps, or n whole episodes of s steps.

    `weights` say what "mean" means: a loss is `(per step x weights).sum()`. `lengths` are there when the
    episodes are whole.
    """

    inputs: InputsT
    old_log_probs: Float[Tensor, " s"]
    advantages: Float[Tensor, " s"]
    weights: Float[Tensor, " s"]
    reference_log_probs: Float[Tensor, " s"] | None = None
    reference_parameters: Float[Tensor, "s P"] | None = None
    returns: Float[Tensor, " s"] | None = None
    lengths: Int[Tensor, " n"] | None = None

    def select(
        self,
        steps: Rows,
        *,
        inputs: InputsT,
        weights: Float[Tensor, " s2"],
        lengths: Int[Tensor, " n2"] | None = None,
    ) -> "Minibatch[InputsT]":
        """The rows `steps`, with the inputs, weights and whole episodes that go with them."""
        return Minibatch(
            inputs=inputs,
            old_log_probs=self.old_log_probs[steps],
            advantages=self.advantages[steps],
            weights=weights,
            reference_log_probs=select_rows(self.reference_log_probs, steps),
            reference_parameters=select_rows(self.reference_parameters, steps),
            returns=select_rows(self.returns, steps),
            lengths=lengths,
        )

    def select_episodes(self, episodes: Int[Tensor, " m"]) -> "Minibatch[InputsT]":
        """Whole episodes with the weights that they have here: a micro-batch, which only accumulates.

        Raises:
            ValueError: The minibatch holds single steps.
        """
        if self.lengths is None:
            raise ValueError("the minibatch holds single steps: set plan=MinibatchPlan(..., by='episode')")
        lengths = self.lengths[episodes]
        steps = offsets(self.lengths)[episodes][episode_ids(lengths)] + timesteps(lengths)
        inputs = self.inputs.select_episodes(episodes, steps)
        return self.select(steps, inputs=inputs, weights=self.weights[steps], lengths=lengths)


def step_weights(
    lengths: Int[Tensor, " N"],
    reduction: Reduction,
    *,
    loss_mask: Bool[Tensor, " S"] | None = None,
    max_length: int | None = None,
) -> Float[Tensor, " S"]:
    """One weight per step that says what "mean" means; the loss is `(per step x weights).sum()`.

    - "episode_mean": 1 / (N len), GRPO's 1/|o_i|: every episode counts the same.
    - "step_mean": 1 / S, the token mean of DAPO: every step counts the same.
    - "constant": 1 / (N max_length), Dr. GRPO: a step's weight does not depend on its episode's length.

    Lengths count unmasked steps. An episode with none leaves N, except in "constant", which keeps all N.

    Args:
        lengths: Steps per episode, >= 1.
        reduction: One of the three names.
        loss_mask: False gives a step weight 0.
        max_length: Longest possible episode in steps; needed by "constant" alone.

    Returns:
        Weights >= 0; they sum to 1 (or below, for "constant"), and to 0 where no step counts.

    Raises:
        ValueError: An unknown reduction, or "constant" without max_length.

    Source: DeepSeekMath (arXiv:2402.03300) eq. 3; DAPO (arXiv:2503.14476) eq. 8; Dr. GRPO (arXiv:2503.20783).

    >>> step_weights(torch.tensor([1, 3]), "episode_mean")
    tensor([0.5000, 0.1667, 0.1667, 0.1667])
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}, got {reduction!r}")
    ids = episode_ids(lengths)
    if loss_mask is not None and loss_mask.shape != ids.shape:
        raise ValueError(f"loss_mask has shape {tuple(loss_mask.shape)}, lengths sum to {len(ids)} steps")
    counted = torch.ones_like(ids, dtype=torch.float64) if loss_mask is None else loss_mask.double()
    unmasked = torch.zeros_like(lengths, dtype=torch.float64).index_add_(0, ids, counted)
    if reduction == "step_mean":
        divisor = unmasked.sum().expand(len(lengths))
    elif reduction == "episode_mean":
        divisor = (unmasked > 0).sum() * unmasked
    elif max_length is None:
        raise ValueError(
            "reduction 'constant' divides by max_length, and the sampler has none: give the environment a time limit"
        )
    else:
        divisor = torch.full_like(unmasked, len(lengths) * max_length)
    # An episode without a counted step has divisor 0 and only zeros above it.
    return (counted / divisor.clamp(min=1.0)[ids]).float()


def minibatches_of_steps(
    whole: Minibatch[InputsT], plan: MinibatchPlan, rng: torch.Generator
) -> Iterator[Minibatch[InputsT]]:
    """All epochs' minibatches of single steps; weights times S / s, so that each estimates the whole batch."""
    num_steps = len(whole.weights)
    size = min(int(plan.size or num_steps), num_steps)
    for _ in range(plan.epochs):
        order = torch.randperm(num_steps, generator=rng).to(whole.weights.device)
        for rows in order.split(size * GATHERED):
            block = whole.select(rows, inputs=whole.inputs.select_steps(rows), weights=whole.weights[rows])
            yield from _slices(block, size, num_steps)


def _slices(block: Minibatch[InputsT], size: int, num_steps: int) -> Iterator[Minibatch[InputsT]]:
    for start in range(0, len(block.weights), size):
        rows = slice(start, min(start + size, len(block.weights)))
        weights = block.weights[rows] * (num_steps / (rows.stop - start))
        yield block.select(rows, inputs=block.inputs.select_steps(rows), weights=weights)


def select_rows(values: Tensor | None, rows: Rows) -> Tensor | None:
    """`values[rows]`, where there are values."""
    return None if values is None else values[rows]
