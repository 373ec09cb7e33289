"""Prompts: from a list, a JSON Lines file or a data set, and which of them a step takes."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from grpolib.text.tokens import Prompt

COLUMN = "prompt"
"""The column that holds the prompt."""


@runtime_checkable
class Rows(Protocol):
    """Anything indexed from 0, such as a list or a `datasets.Dataset`."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """One of them."""
        ...


PromptSource: TypeAlias = Rows | str | os.PathLike[str]
"""Prompts themselves, rows with a column "prompt", or a JSON Lines file of either."""


@dataclass(frozen=True)
class PromptRow:
    """A prompt, and what else its row says."""

    prompt: Prompt
    columns: Mapping[str, Any]


class Prompts:
    """Prompts by number.

    Args:
        source: A list of strings, conversations or rows (mappings with a column "prompt"), a `datasets.Dataset`,
            or the path of a JSON Lines file.

    Raises:
        ValueError: No prompt.
        TypeError: No list: columns by name, or what has no order.
        FileNotFoundError: No such file.
    """

    def __init__(self, source: PromptSource) -> None:
        if isinstance(source, Mapping) or not isinstance(source, str | os.PathLike | Rows):
            raise TypeError(
                f"prompts are a {type(source).__name__}: give a list of prompts or of rows with a column {COLUMN!r}, a "
                "datasets.Dataset, or the path of a JSON Lines file"
            )
        self._rows: Rows = list(_lines(Path(source))) if isinstance(source, str | os.PathLike) else source
        if len(self._rows) == 0:
            raise ValueError(f"there is no prompt in {source!r}: give at least one")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[PromptRow]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, index: int) -> PromptRow:
        """The row with this number.

        Raises:
            TypeError: It is neither a prompt nor a row with one.
        """
        row = self._rows[index]
        if isinstance(row, str):
            return PromptRow(row, {})
        if isinstance(row, Mapping) and COLUMN in row:
            return PromptRow(row[COLUMN], {name: value for name, value in row.items() if name != COLUMN})
        if isinstance(row, Sequence) and len(row) > 0:
            return PromptRow(row, {})
        raise TypeError(f"prompt {index} is {row!r}: give text, messages, token ids, or a row with a column {COLUMN!r}")


def prompt_numbers(seed: np.random.SeedSequence, groups: Sequence[int], count: int) -> list[int]:
    """Which of `count` prompts each group of a step takes: a function of the step's seed and the group alone.

    A step draws without replacement; beyond `count` groups it begins anew.
    """
    orders: dict[int, Any] = {}
    numbers = []
    for group in groups:
        turn, place = divmod(group, count)
        if turn not in orders:
            key = np.random.SeedSequence(entropy=seed.entropy, spawn_key=(*seed.spawn_key, turn, PROMPTS))
            orders[turn] = np.random.default_rng(key).permutation(count)
        numbers.append(int(orders[turn][place]))
    return numbers


PROMPTS = 2
"""Last part of the key: apart from the groups' own draws, whose keys are shorter."""


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
