"""Prompts and completions as one sequence each: the plain way to read them, right for every causal model."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from grpolib.text.inputs import TokenInputs


class Joined(NamedTuple):
    """Prompt and completion without a gap, padded on the right: positions count from 0 in any batch."""

    ids: Int[Tensor, "N T"]
    mask: Bool[Tensor, "N T"]
    predicts: Bool[Tensor, "N T"]


def joined(inputs: TokenInputs) -> Joined:
    """The sequences, and the positions whose output predicts a completion's token."""
    left = torch.cat([inputs.prompts[inputs.prompt_index], inputs.completions], 1)
    left_mask = torch.cat([inputs.prompt_mask[inputs.prompt_index], inputs.completion_mask], 1)
    # Stable: what counts moves to the front in its order.
    order = torch.argsort(left_mask.int(), dim=1, descending=True, stable=True)
    lengths, prompts = left_mask.sum(1), inputs.prompt_lengths[inputs.prompt_index]
    width = int(lengths.max())
    places = torch.arange(width, device=left.device)
    predicts = (places >= prompts.unsqueeze(1) - 1) & (places < lengths.unsqueeze(1) - 1)
    return Joined(left.gather(1, order)[:, :width], places < lengths.unsqueeze(1), predicts)


def last_rows(values: Shaped[Tensor, "N T ..."], mask: Bool[Tensor, "N T"]) -> Shaped[Tensor, "N ..."]:
    """Each sequence's value at its last token."""
    return values[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1]
