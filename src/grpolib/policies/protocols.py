"""What a policy is: a module that scores the steps of a batch, and, in an environment, acts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions import Distribution

from grpolib.trees import Tree


@dataclass(frozen=True)
class Action:
    """What a policy did in n environments at once, before the environment's own bounds apply.

    `actions` are as sampled, one row an environment; `log_probs` [n] are theirs in nats; `state` is what a recurrent
    policy takes to the next step.
    """

    actions: Tree
    log_probs: Float[Tensor, " n"]
    state: Any = None


@dataclass(frozen=True)
class Evaluation:
    """A policy's score of s steps: log pi(a|s) and entropy in nats, both with gradient.

    `values` are a critic's, `distribution` is there where the policy has it in closed form.
    """

    log_probs: Float[Tensor, " s"]
    entropy: Float[Tensor, " s"]
    values: Float[Tensor, " s"] | None = None
    distribution: Distribution | None = None


@runtime_checkable
class Policy(Protocol):
    """An `nn.Module` that scores the actions of a batch."""

    training: bool

    def evaluate(self, inputs: Any) -> Evaluation:
        """Log-probabilities and entropy of the steps of `inputs`, with gradient."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The trainable parameters."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Take parameters and buffers from `state_dict`."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """Itself and its parts."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch dropout and the like on or off."""
        ...


@runtime_checkable
class SplittingPolicy(Policy, Protocol):
    """A policy that cannot score any number of episodes at once, and says how to split them."""

    def micro_batches(self, inputs: Any) -> list[Int[Tensor, " n"]]:
        """The episodes of each part; every episode is in one part."""
        ...


@runtime_checkable
class ReferablePolicy(Policy, Protocol):
    """A policy that makes its own frozen reference, without a copy of its parameters for instance."""

    def as_reference(self) -> Policy:
        """The policy as it is now, which training does not change."""
        ...


@runtime_checkable
class ActingPolicy(Policy, Protocol):
    """A policy that also acts in environments."""

    def act(
        self,
        observations: Tree,
        rng: torch.Generator,
        *,
        state: Any = None,
        deterministic: bool = False,
    ) -> Action:
        """Act in n environments.

        Args:
            observations: One row per environment.
            rng: The only source of randomness (a CPU generator).
            state: A recurrent policy's state of these environments; None at the start.
            deterministic: The most probable action (the mean where there is no mode) instead of a sample.
        """
        ...


@runtime_checkable
class RecurrentPolicy(ActingPolicy, Protocol):
    """A policy with a state: it acts step by step, and evaluates `EpisodeInputs`, whole episodes with their states."""

    def initial_state(self, count: int) -> Tree:
        """The state at the start of an episode, one row for each of `count` environments."""
        ...
