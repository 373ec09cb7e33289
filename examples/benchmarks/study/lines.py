"""CSV files that grow by whole lines: what is read back is what was written, whatever a crash left.

The first columns of every file, `KEY` of them, name the run that a line belongs to.
"""

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from study.locks import locked

Line = Mapping[str, Any]
KEY = 2
"""Row and seed."""
WORDS = ("row", "grpolib", "commit", "torch")
"""Columns that hold no number."""


def add_once(path: Path, columns: Sequence[str], line: Line, *, before: Callable[[], None] | None = None) -> bool:
    """Append the line of a run; False, and nothing written, where one is there already.

    A last line that a crash left half-written is taken away first.

    Args:
        path: Made, with its header, if missing.
        columns: Of the header; the line has exactly these names.
        line: To append.
        before: Called when it is clear that the line is new, before it is written; no other process adds meanwhile.

    Raises:
        ValueError: A line whose names are not the file's columns, or a file that does not read.
    """
    fields = as_fields(line, columns)
    with locked(path) as file:
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        file.truncate(len(whole))
        if any(found[:KEY] == fields[:KEY] for found in read(path, columns)):
            return False
        if before is not None:
            before()
        header = b"" if whole else as_text([columns])
        file.write(header + as_text([fields]))
        os.fsync(file.fileno())
    return True


def replace(path: Path, columns: Sequence[str], lines: Iterable[Line]) -> None:
    """Add a run's lines in place of those that an earlier try of it left; the file appears whole or not at all."""
    new = [as_fields(line, columns) for line in lines]
    own = {tuple(fields[:KEY]) for fields in new}
    kept = [fields for fields in read(path, columns) if tuple(fields[:KEY]) not in own]
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(as_text([columns, *kept, *new]))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_runs(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The lines by name, a line per run.

    Raises:
        ValueError: A run that stands there twice, as after a merge, or a file that does not read.
    """
    lines = numbered(read(path, columns), columns)
    twice = [pair for pair, times in Counter((line["row"], line["seed"]) for line in lines).items() if times > 1]
    if twice:
        raise ValueError(
            f"{path} has {twice[0][0]} seed {twice[0][1]} twice: remove one of them, and its lines in the files beside "
            "it"
        )
    return lines


def read(path: Path, columns: Sequence[str]) -> list[list[str]]:
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


def numbered(lines: Iterable[Sequence[str]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Lines by name: seeds are whole, an empty field is not a number (nan)."""
    return [{name: _value(name, text) for name, text in zip(columns, line, strict=True)} for line in lines]


def _value(name: str, text: str) -> Any:
    if name in WORDS:
        return text
    return int(text) if name == "seed" else float(text or "nan")


def as_fields(line: Line, columns: Sequence[str]) -> list[str]:
    if set(line) != set(columns):
        raise ValueError(f"names that differ from the columns: {sorted(set(line) ^ set(columns))}")
    return [_text(line[name]) for name in columns]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.6g}"
    return str(value)


def as_text(lines: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
