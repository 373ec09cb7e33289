"""What a few seeds say about a row: mean, standard deviation, interquartile mean and how sure it is."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpolib.cli import statistics

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Spread:
    """One figure over the seeds of a row, at least one.

    `std` has divisor N. `middle` is the interquartile mean: a quarter of the seeds, rounded down, is left out at
    each end, so it is the plain mean of up to three seeds. `interval` is the middle's 95 % percentile bootstrap
    interval over the seeds; None of one seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """Standard deviation over the seeds, divisor N."""
        return float(np.std(self.values))

    @property
    def middle(self) -> float:
        """Interquartile mean."""
        return statistics.middle(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of the interquartile mean."""
        return statistics.interval(self.values)

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}" if len(self.values) > 1 else f"{self.mean:.1f}"

    def range(self, show: Callable[[float], str]) -> str:
        """Lowest and highest seed, in words."""
        low, high = show(min(self.values)), show(max(self.values))
        return low if low == high else f"{low} to {high}"


def of_row(lines: Lines, row: str, seeds: Collection[int]) -> Lines:
    """The lines of a row, sorted by seed."""
    return sorted(
        (line for line in lines if line["row"] == row and line["seed"] in seeds), key=lambda line: line["seed"]
    )


def spread(lines: Lines, name: str) -> Spread | None:
    """A column of some lines; None where no line has a number there."""
    values = tuple(line[name] for line in lines if not math.isnan(line[name]))
    return Spread(values) if values else None
