"""`grpolib compare`."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from grpolib.cli.runs import by_label, result_of

RESAMPLES = 10_000


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional], *, way: Literal["argmax", "sampled"] = "argmax"
) -> None:
    """Compare runs by their final policy: interquartile mean with a 95 % bootstrap interval, and who is ahead.

    Args:
        runs: Their folders; those that differ by their seed alone belong together.
        way: By the most probable actions, or by sampled ones.
    """
    groups = {label: [result_of(run)[f"{way}_mean"] for run in group] for label, group in by_label(runs).items()}
    if not groups:
        raise ValueError("no run: give at least one folder")
    for label, values in groups.items():
        low, high = interval(values)
        print(f"{label}\n  {len(values)} seeds, interquartile mean {middle(values):.1f}, 95 % [{low:.1f}, {high:.1f}]")
    for (one, ours), (other, theirs) in combinations(groups.items(), 2):
        print(f"P({one} > {other}) = {probability_of_improvement(ours, theirs):.2f}")


def middle(values: Sequence[float]) -> float:
    """The interquartile mean: a quarter of the values, rounded down, is left out at each end."""
    from scipy.stats import trim_mean

    return float(trim_mean(values, 0.25))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the interquartile mean; of one value, that value."""
    from scipy.stats import trim_mean

    draws = np.random.default_rng(0).choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.quantile(trim_mean(draws, 0.25, axis=1), (0.025, 0.975))
    return float(low), float(high)


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How often a seed of ours is above one of theirs, over all pairs; a tie counts half.

    Source: Agarwal et al. (arXiv:2108.13264) section 4.3.
    """
    difference = np.subtract.outer(np.array(ours), np.array(theirs))
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())
