"""Any `nn.Module` as a policy."""

from typing import Any

import gymnasium
import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from grpolib.minibatch import StepInputs
from grpolib.policies.distributions import as_distribution, entropy, mode, sample
from grpolib.policies.protocols import ActingPolicy, Action, Evaluation, Policy
from grpolib.policies.spaces import check_action_space


class ModulePolicy(nn.Module):
    """A module from observations to logits, Gaussian parameters or a `Distribution`, as a policy.

    Args:
        module: Called with observations [n, ...]; see `as_distribution` for what it may return.
        action_space: Says which distribution the output parametrises.

    Raises:
        ValueError: The action space is not supported.
    """

    def __init__(self, module: nn.Module, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        check_action_space(action_space)
        self.module = module
        self.action_space = action_space

    def distribution(self, observations: Shaped[Tensor, "n ..."]) -> Distribution:
        """The action distribution in each of n observations."""
        return as_distribution(self.module(observations), self.action_space)

    @torch.no_grad()
    def act(
        self,
        observations: Shaped[Tensor, "n ..."],
        rng: torch.Generator,
        *,
        state: Any = None,
        deterministic: bool = False,
    ) -> Action:
        """Act in n environments; see `ActingPolicy.act`."""
        distribution = self.distribution(observations)
        actions = mode(distribution) if deterministic else sample(distribution, rng)
        return Action(actions, distribution.log_prob(actions))

    def evaluate(self, inputs: StepInputs) -> Evaluation:
        """Log-probabilities [s] of the actions taken and entropies [s], with gradient."""
        distribution = self.distribution(inputs.observations)
        log_probs = distribution.log_prob(inputs.actions)
        return Evaluation(log_probs, entropy(distribution, log_probs), distribution=distribution)


def as_policy(module: Policy | nn.Module, action_space: gymnasium.Space[Any]) -> ActingPolicy:
    """`module` itself where it is a policy already, else a `ModulePolicy` around it.

    Raises:
        TypeError: `module` is not an `nn.Module`.
    """
    if isinstance(module, ActingPolicy):
        return module
    if not isinstance(module, nn.Module):
        raise TypeError(f"a policy is a torch.nn.Module, got {type(module).__name__}: for instance mlp(8, 64, 64, 4)")
    return ModulePolicy(module, action_space)
