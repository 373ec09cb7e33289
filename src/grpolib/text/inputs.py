"""What a language model reads to score completions: prompts once each, completions, and which belongs to which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from grpolib.functional import offsets
from grpolib.minibatch import Rows


@dataclass(frozen=True, kw_only=True)
class TokenInputs:
    """Prompts and completions of a batch; a step is a completion token, an episode a completion.

    Each prompt stands once, however many completions it has. What the masks leave out may hold any id.

    Args:
        prompts: Token ids, padded on the left.
        prompt_mask: True at a prompt's own tokens: the last ones of its row, >= 1.
        completions: Token ids, padded on the right.
        completion_mask: True at a completion's own tokens, its end-of-sequence included: the first ones, >= 1.
        prompt_index: The prompt of each completion.

    Raises:
        ValueError: Shapes or masks that do not fit together, an empty prompt or completion.
    """

    prompts: Int[Tensor, "P Tp"]
    prompt_mask: Bool[Tensor, "P Tp"]
    completions: Int[Tensor, "N Tc"]
    completion_mask: Bool[Tensor, "N Tc"]
    prompt_index: Int[Tensor, " N"]

    def __post_init__(self) -> None:
        _check_mask("prompt", self.prompts, self.prompt_mask.flip(-1))
        _check_mask("completion", self.completions, self.completion_mask)
        if self.prompt_index.shape != self.completions.shape[:1]:
            raise ValueError(
                f"prompt_index has shape {tuple(self.prompt_index.shape)} for {len(self.completions)} completions"
            )
        if not bool(((self.prompt_index >= 0) & (self.prompt_index < len(self.prompts))).all()):
            raise ValueError(
                f"prompt_index {self.prompt_index.tolist()} leaves 0..{len(self.prompts) - 1}, the prompts"
            )

    @classmethod
    def of(
        cls, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], prompt_index: Sequence[int]
    ) -> "TokenInputs":
        """Padded from lists of token ids.

        >>> TokenInputs.of([[5, 6], [7]], [[8], [9, 2]], [0, 1]).prompts
        tensor([[5, 6],
                [0, 7]])
        """
        padded_prompts, prompt_mask = _padded([list(ids)[::-1] for ids in prompts])
        padded_completions, completion_mask = _padded(completions)
        return cls(
            prompts=padded_prompts.flip(-1),
            prompt_mask=prompt_mask.flip(-1),
            completions=padded_completions,
            completion_mask=completion_mask,
            prompt_index=torch.tensor(list(prompt_index), dtype=torch.long),
        )

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """Tokens of each completion."""
        return self.completion_mask.sum(-1)

    @property
    def prompt_lengths(self) -> Int[Tensor, " P"]:
        """Tokens of each prompt."""
        return self.prompt_mask.sum(-1)

    @property
    def tokens(self) -> Int[Tensor, " S"]:
        """The completions' tokens end to end: one a step."""
        return self.completions[self.completion_mask]

    def select_steps(self, steps: Rows) -> NoReturn:
        """Refused: a token is scored together with all tokens before it.

        Raises:
            ValueError: Always.
        """
        raise ValueError("completions are selected whole: set plan=MinibatchPlan(..., by='episode')")

    def select_episodes(self, episodes: Int[Tensor, " n"], steps: Int[Tensor, " s"] | None = None) -> "TokenInputs":
        """Whole completions in the order of `episodes`, with their prompts and no more padding than they need."""
        used, prompt_index = torch.unique(self.prompt_index[episodes], return_inverse=True)
        prompt_mask, completion_mask = self.prompt_mask[used], self.completion_mask[episodes]
        first = self.prompts.shape[1] - int(prompt_mask.sum(-1).max())
        last = int(completion_mask.sum(-1).max())
        return TokenInputs(
            prompts=self.prompts[used, first:],
            prompt_mask=prompt_mask[:, first:],
            completions=self.completions[episodes, :last],
            completion_mask=completion_mask[:, :last],
            prompt_index=prompt_index,
        )

    def concatenate(self, others: "Sequence[TokenInputs]") -> "TokenInputs":
        """These completions followed by those of `others`."""
        parts = (self, *others)
        shifts = offsets(torch.tensor([len(part.prompts) for part in parts]))
        return TokenInputs(
            prompts=_stacked([part.prompts for part in parts], left=True),
            prompt_mask=_stacked([part.prompt_mask for part in parts], left=True),
            completions=_stacked([part.completions for part in parts], left=False),
            completion_mask=_stacked([part.completion_mask for part in parts], left=False),
            prompt_index=torch.cat([part.prompt_index + int(shifts[number]) for number, part in enumerate(parts)]),
        )

    def to(self, device: torch.device) -> "TokenInputs":
        """The same inputs on another device."""
        return TokenInputs(
            prompts=self.prompts.to(device),
            prompt_mask=self.prompt_mask.to(device),
            completions=self.completions.to(device),
            completion_mask=self.completion_mask.to(device),
            prompt_index=self.prompt_index.to(device),
        )


def _check_mask(name: str, ids: Tensor, mask: Tensor) -> None:
    """`mask` with the padding behind the tokens."""
    if ids.ndim != 2 or mask.shape != ids.shape:
        raise ValueError(f"{name}s have shape {tuple(ids.shape)}, their mask {tuple(mask.shape)}: both must be 2-D")
    if mask.shape[1] == 0 or not bool(mask[:, 0].all()):
        raise ValueError(f"a {name} has no token, or padding on the wrong side: prompts left, completions right")
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError(f"the mask of a {name} has a hole: padding stands on one side only")


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask, padded on the right with 0."""
    width = max((len(row) for row in rows), default=0)
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.long).reshape(len(rows), width)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    return ids, torch.arange(width) < lengths.unsqueeze(1)


def _stacked(parts: Sequence[Tensor], *, left: bool) -> Tensor:
    width = max(part.shape[1] for part in parts)
    missing = [width - part.shape[1] for part in parts]
    pads = [(gap, 0) if left else (0, gap) for gap in missing]
    return torch.cat([torch.nn.functional.pad(part, pad) for part, pad in zip(parts, pads, strict=True)])
