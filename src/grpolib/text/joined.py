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
    ids, mask = moved_left(
        torch.cat([inputs.prompts[inputs.prompt_index], inputs.completions], 1),
        torch.cat([inputs.prompt_mask[inputs.prompt_index], inputs.completion_mask], 1),
    )
    firsts = inputs.prompt_lengths[inputs.prompt_index].unsqueeze(1) - 1
    places = torch.arange(ids.shape[1], device=ids.device)
    return Joined(ids, mask, (places >= firsts) & (places < firsts + inputs.lengths.unsqueeze(1)))


def moved_left(ids: Int[Tensor, "n T"], mask: Bool[Tensor, "n T"]) -> tuple[Int[Tensor, "n T2"], Bool[Tensor, "n T2"]]:
    """What the mask marks, in its order, with all padding behind it and no more of it than needed."""
    order = torch.argsort(mask.int(), dim=1, descending=True, stable=True)
    lengths = mask.sum(1)
    width = int(lengths.max())
    return ids.gather(1, order)[:, :width], torch.arange(width, device=ids.device) < lengths.unsqueeze(1)


def last_rows(values: Shaped[Tensor, "N T ..."], mask: Bool[Tensor, "N T"]) -> Shaped[Tensor, "N ..."]:
    """Each sequence's value at its last token."""
    return values[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1]
