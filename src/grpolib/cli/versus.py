"""`grpolib compare`."""

from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import tyro

from grpolib.cli.runs import by_label, result_of
from grpolib.cli.statistics import interval, middle, probability_of_improvement


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
        found = interval(values)
        sure = "" if found is None else f", 95 % [{found[0]:.1f}, {found[1]:.1f}]"
        print(f"{label}\n  {len(values)} seeds, interquartile mean {middle(values):.1f}{sure}")
    for (one, ours), (other, theirs) in combinations(groups.items(), 2):
        print(f"P({one} > {other}) = {probability_of_improvement(ours, theirs):.2f}")
