"""Any `nn.Module` as a policy."""

from dataclasses import replace
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grpolib.minibatch import EpisodeInputs, StepInputs
from grpolib.policies.distributions import as_distribution, entropy, mode, sample
from grpolib.policies.protocols import ActingPolicy, Action, Evaluation, Policy
from grpolib.policies.recurrent import Recurrent
from grpolib.policies.spaces import check_action_space
from grpolib.trees import Tree, leaves, num_rows


class ModulePolicy(nn.Module):
    """A module from observations to logits, Gaussian parameters or a `Distribution`, as a policy.

    Args:
        module: Called with observations, a tensor [n, ...] or a tree of them; see `as_distribution` for what it may
            return.
        action_space: Says which distribution the output parametrises.

    Raises:
        ValueError: The action space is not supported.
    """

    def __init__(self, module: nn.Module, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        check_action_space(action_space)
        self.module = module
        self.action_space = action_space

    def distribution(self, observations: Tree) -> Distribution:
        """The action distribution in each of n observations."""
        return as_distribution(self.module(observations), self.action_space)

    @torch.no_grad()
    def act(
        self,
        observations: Tree,
        rng: torch.Generator,
        *,
        state: Any = None,
        deterministic: bool = False,
    ) -> Action:
        """Act in n environments; see `ActingPolicy.act`."""
        try:
            distribution = self.distribution(observations)
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # of a kind that somebody may wait for: out of memory
                raise
            raise RuntimeError(f"{error}, in {type(self.module).__name__} on {_shapes(observations)}") from error
        return _act(distribution, rng, deterministic)

    def evaluate(self, inputs: StepInputs) -> Evaluation:
        """Log-probabilities [s] of the actions taken and entropies [s], with gradient."""
        return _evaluated(self.distribution(inputs.observations), inputs.actions)


class RecurrentModulePolicy(nn.Module):
    """A `Recurrent` module as a policy: it acts step by step and evaluates whole episodes.

    Args:
        module: Made of an encoder, a memory and a head.
        action_space: Says which distribution the head's output parametrises.

    Raises:
        ValueError: The action space is not supported.
    """

    def __init__(self, module: Recurrent, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        check_action_space(action_space)
        self.module = module
        self.action_space = action_space

    def initial_state(self, count: int) -> Tree:
        """Zeros."""
        return self.module.initial_state(count)

    @torch.no_grad()
    def act(
        self,
        observations: Tree,
        rng: torch.Generator,
        *,
        state: Any = None,
        deterministic: bool = False,
    ) -> Action:
        """Act in n environments; see `ActingPolicy.act`."""
        count = num_rows(observations)
        before = self.initial_state(count) if state is None else state
        output, after = self.module(observations, None, before)
        return replace(_act(as_distribution(output, self.action_space), rng, deterministic), state=after)

    def evaluate(self, inputs: EpisodeInputs) -> Evaluation:
        """Log-probabilities [s] of the actions taken and entropies [s], with gradient through time."""
        output, _ = self.module(inputs.observations, inputs.lengths, inputs.states)
        return _evaluated(as_distribution(output, self.action_space), inputs.actions)


def _shapes(observations: Tree) -> str:
    return ", ".join(f"observations {tuple(leaf.shape)} of {leaf.dtype}" for leaf in leaves(observations))


def _act(distribution: Distribution, rng: torch.Generator, deterministic: bool) -> Action:
    actions = mode(distribution) if deterministic else sample(distribution, rng)
    return Action(actions, distribution.log_prob(actions))


def _evaluated(distribution: Distribution, actions: Any) -> Evaluation:
    log_probs: Tensor = distribution.log_prob(actions)
    return Evaluation(log_probs, entropy(distribution, log_probs), distribution=distribution)


def as_policy(module: Policy | nn.Module, action_space: gymnasium.Space[Any]) -> ActingPolicy:
    """`module` itself where it is a policy already, else a policy around it: with a state around a `Recurrent`.

    Raises:
        TypeError: `module` is not an `nn.Module`.
    """
    if isinstance(module, ActingPolicy):
        return module
    if not isinstance(module, nn.Module):
        raise TypeError(f"a policy is a torch.nn.Module, got {type(module).__name__}: for instance mlp(8, 64, 64, 4)")
    if isinstance(module, Recurrent):
        return RecurrentModulePolicy(module, action_space)
    return ModulePolicy(module, action_space)
