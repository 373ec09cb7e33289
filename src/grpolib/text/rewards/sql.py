"""Queries that find what they should."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpolib.text.rewards.answers import code_of
from grpolib.text.rewards.columns import column
from grpolib.text.rewards.judges import Judge
from grpolib.text.rewards.protocol import Scores
from grpolib.text.rewards.seconds import check_seconds


@dataclass(frozen=True)
class SQLResult:
    """1 where the completion's query gives the same rows as the reference query, else 0. No reference: None.

    The query is the last fenced block of the completion, or all of it: one statement that only reads. It runs on
    SQLite, read-only and behind an authorizer, in another process. Names of columns do not count, types do as far as
    SQLite tells them apart: 1 is 1.0 and not '1'.

    Args:
        reference: Column of queries.
        database: Column of paths of SQLite files.
        ordered: Whether the order of the rows counts; else how often each occurs.
        max_rows: A query that gives more is wrong, and a reference an error.
        seconds: Wall-clock time for one query; the process is killed after twice as long.

    Raises:
        ValueError: A reference fails, takes too long or gives too many rows.
        FileNotFoundError: There is no such database.
    """

    reference: str = "query"
    database: str = "database"
    ordered: bool = False
    max_rows: int = 10_000
    seconds: float = 5.0

    def __post_init__(self) -> None:
        check_seconds(self, self.seconds)
        if self.max_rows < 1:
            raise ValueError(f"{self}: max_rows must be >= 1")

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        references, databases = column(self, columns, self.reference), column(self, columns, self.database)
        questions = [_question(*row) for row in zip(completions, references, databases, strict=True)]
        return [self._value(*row) for row in zip(questions, self._judge()(questions), strict=True)]

    def _judge(self) -> Judge:
        settings = {"ordered": self.ordered, "max_rows": self.max_rows, "seconds": self.seconds}
        return Judge("sql.py", 2 * self.seconds + 1, settings)

    def _value(self, question: Mapping[str, str] | None, verdict: Any) -> float | None:
        if question is None:
            return None
        if isinstance(verdict, str):
            raise ValueError(f"{self}: the reference {question['reference']!r} on {question['database']}: {verdict}")
        return float(verdict is True)


def _question(completion: str, reference: str | None, database: str | os.PathLike[str]) -> Mapping[str, str] | None:
    if reference is None:
        return None
    path = os.path.abspath(database)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no database {path}")
    return {"database": path, "query": code_of(completion), "reference": reference}
