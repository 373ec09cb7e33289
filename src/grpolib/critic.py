"""A critic: values for generalised advantages and their targets."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from grpolib.batch import GroupBatch
from grpolib.functional import discounted_returns
from grpolib.functional._checks import check_fraction
from grpolib.minibatch import EpisodeInputs, StepInputs
from grpolib.policies.normalized import RunningStatistics
from grpolib.trees import Tree, num_rows


@dataclass(frozen=True)
class Critic:
    """Any module from observations to one value each, [n] or [n, 1]; trained beside the policy.

    Args:
        module: Trained in place, for instance `mlp(8, 64, 64, 1)`, or `ScaledRewards(mlp(8, 64, 64, 1))`.
    """

    module: nn.Module

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"module is {self.module!r}: a critic is a torch.nn.Module, for instance mlp(8, 64, 64, 1)")

    def __call__(self, inputs: StepInputs | EpisodeInputs) -> Float[Tensor, " s"]:
        """Values of s steps' observations, with gradient."""
        return self._values(inputs.observations)

    @torch.no_grad()
    def annotate(self, batch: GroupBatch[Any]) -> GroupBatch[Any]:
        """The batch with `values` and `final_values`, in one pass before any update.

        Raises:
            ValueError: The sampler gave no final observations.
        """
        if batch.final_inputs is None:
            raise ValueError("a critic bootstraps from final_inputs, and the sampler gave none")
        if isinstance(self.module, ScaledRewards):
            batch = replace(batch, reward_factors=self.module.factors(batch))
        return replace(batch, values=self(batch.inputs), final_values=self._values(batch.final_inputs))

    def _values(self, observations: Tree) -> Float[Tensor, " n"]:
        values: Tensor = self.module(observations)
        count = num_rows(observations)
        if values.shape not in ((count,), (count, 1)):
            raise ValueError(f"the critic gave {tuple(values.shape)} for {count} observations: expected one value each")
        return values.reshape(-1)


class ScaledRewards(nn.Module):
    """A critic's network whose unit is the standard deviation of the returns, whatever the unit of the rewards.

    Rewards are divided by the running standard deviation of the discounted rewards to go, those of the present batch
    included, before advantages and value targets are computed. The batch keeps the rewards as they are, and logs and
    evaluations show those. The statistics are buffers, so they are in the run's checkpoints.

    Args:
        module: From observations to one value each, in that unit.
        discount: gamma of the rewards to go, in [0, 1]; the estimator's.
    """

    def __init__(self, module: nn.Module, discount: float = 0.99) -> None:
        super().__init__()
        check_fraction("discount", discount)
        self.module, self.discount = module, discount
        self.statistics = RunningStatistics(())

    def forward(self, observations: Tree) -> Tensor:
        """Values, in standard deviations of the returns."""
        values: Tensor = self.module(observations)
        return values

    @torch.no_grad()
    def factors(self, batch: GroupBatch[Any]) -> Float[Tensor, " S"]:
        """Take in the batch's rewards to go, and give what its rewards are multiplied by."""
        to_go = discounted_returns(batch.penalized_rewards, batch.lengths, discount=self.discount)
        self.statistics.take_in(to_go if batch.counted is None else to_go[batch.counted])
        return self.statistics.scale.to(to_go.dtype).expand(len(to_go))
