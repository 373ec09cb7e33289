"""Micro-batches by tokens."""

import torch
from jaxtyping import Int
from torch import Tensor

from grpolib.text.inputs import TokenInputs


def micro_batches(inputs: TokenInputs, tokens: int) -> list[Int[Tensor, " n"]]:
    """Split completions so that a part has at most `tokens` tokens with its padding, unless it is a single one.

    A group stays together where it fits, so that its prompt is read once.
    """
    parts: list[list[int]] = []
    lengths, prompt_lengths = inputs.lengths.tolist(), inputs.prompt_lengths.tolist()
    index = inputs.prompt_index.tolist()

    def cost(part: list[int]) -> int:
        prompts = {index[episode] for episode in part}
        of_prompts = len(prompts) * max(prompt_lengths[prompt] for prompt in prompts)
        return int(of_prompts + len(part) * max(lengths[episode] for episode in part))

    for group in _groups(index):
        pieces = [group] if cost(group) <= tokens else [[episode] for episode in group]
        for piece in pieces:
            if parts and cost(parts[-1] + piece) <= tokens:
                parts[-1] += piece
            else:
                parts.append(list(piece))
    return [torch.tensor(part, device=inputs.completions.device) for part in parts]


def _groups(index: list[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for episode, prompt in enumerate(index):
        groups.setdefault(prompt, []).append(episode)
    return list(groups.values())
