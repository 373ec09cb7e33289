"""A critic: values for generalised advantages and their targets."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from grpolib.batch import GroupBatch
from grpolib.minibatch import EpisodeInputs, StepInputs
from grpolib.trees import Tree, num_rows


@dataclass(frozen=True)
class Critic:
    """Any module from observations to one value each, [n] or [n, 1]; trained beside the policy.

    Args:
        module: Trained in place, for instance `mlp(8, 64, 64, 1)`.
    """

    module: nn.Module

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
        return replace(batch, values=self(batch.inputs), final_values=self._values(batch.final_inputs))

    def _values(self, observations: Tree) -> Float[Tensor, " n"]:
        values: Tensor = self.module(observations)
        count = num_rows(observations)
        if values.shape not in ((count,), (count, 1)):
            raise ValueError(f"the critic gave {tuple(values.shape)} for {count} observations: expected one value each")
        return values.reshape(-1)
