"""`grpolib plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from grpolib.cli.runs import by_label, columns_of


def plot(runs: Annotated[tuple[Path, ...], tyro.conf.Positional], *, out: Path = Path("curves.png")) -> None:
    """Draw evaluation returns; runs that differ by their seed alone are one curve with its spread.

    Args:
        runs: Their folders.
        out: The picture.
    """
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    if not runs:
        raise ValueError("no run: give at least one folder")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    for label, group in by_label(runs).items():
        for axis, way in zip(axes, ("argmax", "sampled"), strict=True):
            _draw(axis, group, f"{way}_mean", f"{label} ({len(group)} seeds)" if len(group) > 1 else label)
    for axis, way in zip(axes, ("argmax", "sampled"), strict=True):
        axis.set(title=f"evaluation return, {way}", xlabel="environment steps")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=120)
    plt.close(figure)
    print(f"{out}: {len(runs)} runs; the band is from the lowest to the highest seed")


def _draw(axis: Any, runs: Sequence[Path], column: str, label: str) -> None:
    """The mean over runs at the same number of steps, and the range."""
    found = [columns_of(run / "evaluations.csv") for run in runs]
    steps = np.linspace(0, min(one["num_steps"][-1] for one in found), 200)
    values = np.array([np.interp(steps, one["num_steps"], one[column]) for one in found])
    (line,) = axis.plot(steps, values.mean(axis=0), label=label)
    if len(runs) > 1:
        axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2)
