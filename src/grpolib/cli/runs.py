"""Several runs side by side: which belong together, and their evaluations."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpolib.cli.settings import read_settings

Column = NDArray[np.float64]
RESULT = "result.json"


def columns_of(path: Path) -> dict[str, Column]:
    """A CSV file's columns; an empty cell is NaN.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: It has no row.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} has no row yet: let the run go on for longer")
    return {name: np.array([float(row[name] or math.nan) for row in rows]) for name in rows[0]}


def by_label(runs: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs that differ by their seed alone, under what they have in common."""
    groups: dict[str, list[Path]] = {}
    for run in runs:
        groups.setdefault(read_settings(run).label, []).append(run)
    return groups


def result_of(run: Path) -> dict[str, Any]:
    """The evaluation of a run's final policy on the reported starts.

    Raises:
        FileNotFoundError: The run is not complete.
    """
    path = run / RESULT
    if not path.is_file():
        raise FileNotFoundError(f"no {RESULT} in {run}, the run is not complete: grpolib resume {run}")
    result: dict[str, Any] = json.loads(path.read_text())
    return result
