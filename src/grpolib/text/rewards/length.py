"""A penalty on completions that run out of room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpolib.text.rewards.protocol import Scores


@dataclass(frozen=True)
class SoftOverlong:
    """0 up to max_length - buffer, then down along a line to -1 at max_length, -1 beyond.

    R(y) = ((L_max - L_cache) - |y|) / L_cache between the two.

    Args:
        length: |y| of a completion, e.g. `lambda text: len(tokenizer(text).input_ids)` in tokens.
        max_length: L_max > 0, in the unit of `length`.
        buffer: L_cache, in [1, max_length].

    Source: DAPO (arXiv:2503.14476) eq. 13, which adds it to the reward for the answer.

    >>> SoftOverlong(len, max_length=10, buffer=4)(["?"] * 3, ["6 char", "8 chars.", "more than ten"])
    [0.0, -0.5, -1.0]
    """

    length: Callable[[str], int]
    max_length: int
    buffer: int

    def __post_init__(self) -> None:
        if not 1 <= self.buffer <= self.max_length:
            raise ValueError(f"{self}: buffer must be between 1 and max_length")

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        return [self._penalty(self.length(completion)) for completion in completions]

    def _penalty(self, length: int) -> float:
        return max(-1.0, min(0.0, (self.max_length - self.buffer - length) / self.buffer))
