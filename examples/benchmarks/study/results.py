"""Where finished runs are kept: three CSV files, which say what is done and from which the report is made.

runs.csv has a line per finished run and is written last: a run is done when its line stands there.
"""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from study import outcomes
from study.locks import locked
from study.rows import Pair

FIRST = ("row", "seed", "steps", "argmax_mean", "sampled_mean", "argmax_solved", "sampled_solved", "start_entropy")
RUN_COLUMNS = (
    *FIRST,
    *(name for name in outcomes.COLUMNS if name not in FIRST),
    "best_steps",
    *(f"best_{name}" for name in outcomes.COLUMNS),
    "iterations",
    "kl_reference_median",
    "kl_reference_max",
    "kl_old_median",
    "kl_old_max",
    "clip_fraction_median",
    "clip_fraction_max",
    "group_return_std",
    "degenerate_fraction_max",
    "near_degenerate_fraction_max",
    "explained_variance",
    "seconds",
    "grpolib",
    "commit",
    "torch",
)
CURVE_COLUMNS = ("row", "seed", "num_steps", "argmax_mean", "sampled_mean", "start_entropy")
PROGRESS_COLUMNS = ("row", "seed", "share", "num_steps", *outcomes.COLUMNS)
WORDS = ("row", "grpolib", "commit", "torch")
"""Columns that hold no number."""
KEY = 2
"""The first columns of every file, row and seed, name the run."""

Line = Mapping[str, Any]


class Results:
    """The files of a folder.

    Args:
        folder: Made by the first run that is added.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self) -> list[dict[str, Any]]:
        """A line per finished run.

        Raises:
            ValueError: A run that stands there twice, as after a merge.
        """
        lines = _numbered(_read(self.folder / "runs.csv", RUN_COLUMNS), RUN_COLUMNS)
        twice = [pair for pair, times in Counter((line["row"], line["seed"]) for line in lines).items() if times > 1]
        if twice:
            raise ValueError(
                f"{self.folder / 'runs.csv'} has {twice[0][0]} seed {twice[0][1]} twice: remove one of them, and its "
                "lines in curves.csv and progress.csv"
            )
        return lines

    def curves(self) -> list[dict[str, Any]]:
        """The evaluations of the finished runs."""
        return self._of_finished("curves.csv", CURVE_COLUMNS)

    def progress(self) -> list[dict[str, Any]]:
        """The snapshots of the finished runs, each from the same starts."""
        return self._of_finished("progress.csv", PROGRESS_COLUMNS)

    def finished(self) -> set[Pair]:
        """Rows and seeds that are done."""
        return {(line["row"], line["seed"]) for line in self.runs()}

    def add(self, run: Line, curve: Iterable[Line], progress: Iterable[Line]) -> bool:
        """Add a finished run; False, and nothing written, where it is there already.

        A last line that a crash left half-written is taken away first.

        Raises:
            ValueError: A line whose names are not the file's columns, or a file that does not read.
        """
        new = _as_text([_fields(run, RUN_COLUMNS)])
        with locked(self.folder / "runs.csv") as file:
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            file.truncate(len(whole))
            if (run["row"], run["seed"]) in self.finished():
                return False
            _replace(self.folder / "curves.csv", CURVE_COLUMNS, curve)
            _replace(self.folder / "progress.csv", PROGRESS_COLUMNS, progress)
            header = b"" if whole else _as_text([RUN_COLUMNS])
            file.write(header + new)
            os.fsync(file.fileno())
        return True

    def _of_finished(self, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        finished = self.finished()
        lines = _numbered(_read(self.folder / name, columns), columns)
        return [line for line in lines if (line["row"], line["seed"]) in finished]


def _read(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """The lines after the header; a last one without its end was half-written and is left out.

    Raises:
        ValueError: Another header, or a line with too few or too many fields.
    """
    content = path.read_text() if path.exists() else ""
    lines = list(csv.reader(io.StringIO(content[: content.rfind("\n") + 1])))
    if lines and tuple(lines[0]) != tuple(columns):
        raise ValueError(f"{path} has columns {lines[0]}, this version writes {list(columns)}: move the file away")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(columns):
            raise ValueError(
                f"{path}, line {number} has {len(line)} fields, the header {len(columns)}: mend or remove it"
            )
    return lines[1:]


def _numbered(lines: Iterable[Sequence[str]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Lines by name: seeds are whole, an empty field is not a number (nan)."""
    return [{name: _value(name, text) for name, text in zip(columns, line, strict=True)} for line in lines]


def _value(name: str, text: str) -> Any:
    if name in WORDS:
        return text
    return int(text) if name == "seed" else float(text or "nan")


def _replace(path: Path, columns: Sequence[str], lines: Iterable[Line]) -> None:
    """Add a run's lines in place of those that an earlier try of it left; the file appears whole or not at all."""
    new = [_fields(line, columns) for line in lines]
    own = {tuple(line[:KEY]) for line in new}
    kept = [line for line in _read(path, columns) if tuple(line[:KEY]) not in own]
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(_as_text([columns, *kept, *new]))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _fields(line: Line, columns: Sequence[str]) -> list[str]:
    if set(line) != set(columns):
        raise ValueError(f"names that differ from the columns: {sorted(set(line) ^ set(columns))}")
    return [_text(line[name]) for name in columns]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.6g}"
    return str(value)


def _as_text(lines: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
