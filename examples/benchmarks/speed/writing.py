"""Tables and a picture for people."""

import importlib.util
import math
import os
import platform
import re
import textwrap
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpolib.sampling.processes import available_cores
from speed.turns import Table, is_installed


def machine() -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cpu = f"{model[1] if model else platform.processor()}, {available_cores()} cores, load {os.getloadavg()[0]:.1f}"
    packages = {"stable-baselines3": "stable_baselines3", "torchrl": "torchrl"}
    found = [name for name, module in packages.items() if importlib.util.find_spec(module)]
    versions = [f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium", "grpolib", *found)]
    return f"{cpu}; Python {platform.python_version()}, {', '.join(versions)}; {date.today()}"


def number(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "not solved"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def markdown(table: Table) -> str:
    heads = list(table.rows[0])
    lines = [heads, ["---"] * len(heads), *(map(number, row.values()) for row in table.rows)]
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines)
        + f"\n\n{textwrap.fill(table.note, 118, break_on_hyphens=False)}\n"
    )


def draw(table: Table, picture: Path) -> None:
    """Bars of rollouts and updates, with their totals and the floor."""
    if not is_installed("matplotlib", "the picture"):
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    heads = ("contender", "rollouts [s]", "updates [s]")
    names, rollouts, updates = ([row[head] for row in table.rows] for head in heads)
    figure, axis = plt.subplots(figsize=(11, 2.4 + 0.45 * len(names)), layout="constrained")
    axis.barh(names, rollouts, label="rollouts")
    axis.barh(names, updates, left=rollouts, label="updates")
    for place, row in enumerate(table.rows):
        text = f" {number(row['total [s]'])} s, {row['times the floor']:.1f} times the floor"
        axis.text(row["total [s]"], place, text, va="center", fontsize=9)
    axis.axvline(table.rows[-1]["total [s]"], color="0.75", linestyle="--", zorder=0)
    axis.invert_yaxis()
    axis.margins(x=0.35)
    axis.xaxis.set_major_formatter("{x:,.0f} s")
    axis.set_title("Seconds for the same number of steps and updates on LunarLander-v3 (shorter is better)")
    figure.supxlabel(textwrap.fill(table.note, 170), fontsize=8)
    axis.legend(frameon=False, loc="lower right")
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, dpi=120)
    plt.close(figure)
