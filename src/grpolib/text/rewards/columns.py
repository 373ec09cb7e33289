"""Rows of a batch: the column that a reward reads, and one value per row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpolib.text.rewards.protocol import Scores, reward_name


def column(reward: object, columns: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    """The column of that name.

    Raises:
        ValueError: The data has no such column.
    """
    if name not in columns:
        raise ValueError(
            f"{reward_name(reward)} reads the column {name!r}, the data has {sorted(columns)}: add the column, or "
            "tell the reward another one's name"
        )
    return columns[name]


def graded(grade: Callable[[str, Any], float], completions: Sequence[str], references: Sequence[Any]) -> Scores:
    """`grade(completion, reference)` per row; None where the reference is None."""
    return [
        None if reference is None else float(grade(completion, reference))
        for completion, reference in zip(completions, references, strict=True)
    ]
