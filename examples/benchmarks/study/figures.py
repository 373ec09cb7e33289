"""The results as pictures; each reads without its caption."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter
from scipy.stats import trim_mean

from study import published
from study.rows import FAMILIES, REPORT_SEEDS, Row
from study.running import PROGRESS_EPISODES, REPORTED_EPISODES, SHARES
from study.spread import Lines, of_row, spread

COLOURS = {
    "grpo": "#D55E00",
    "process": "#E69F00",
    "process-099": "#CC79A7",
    "critic-free": "#0072B2",
    "ppo": "#009E73",
    "a2c": "#56B4E9",
}
"""Okabe and Ito's, which colour-blind readers tell apart."""
FAMILY_COLOURS = dict(zip(FAMILIES, ("#D55E00", "#E69F00", "#0072B2", "#CC79A7", "#009E73", "#777777"), strict=True))
SOLVED, UNIFORM = 200, math.log(4)
LOWEST, HIGHEST = -450, 320
"""Range of returns that is drawn; a policy that flies away reaches -2,000 and would flatten everything else."""
LOWEST_FINAL = -200
"""The same of policies that have been trained to the end; what lies below is named at the edge."""
GRID_STEPS = 50_000


DASHED = ("critic-free", "process-099", "a2c")
"""Rows beside another one of their family, whose colour they share."""


def learning_curves(curves: Lines, rows: Iterable[Row], path: Path) -> None:
    """Return against environment steps, by argmax and by sample: median and middle half of the seeds."""
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (column, title) in zip(
        axes,
        [("argmax_mean", "most probable action (argmax)"), ("sampled_mean", "sampled action, as in training")],
        strict=True,
    ):
        for row in rows:
            seeds = _by_seed(of_row(curves, row.name, REPORT_SEEDS))
            if not seeds:
                continue
            steps, values = _on_one_grid(seeds, column)
            label = f"{row.name} ({_seeds(len(seeds))})"
            axis.plot(steps / 1e6, np.median(values, axis=0), _line(row), color=_colour(row), linewidth=2, label=label)
            low, high = np.quantile(values, [0.25, 0.75], axis=0)
            axis.fill_between(steps / 1e6, low, high, color=_colour(row), alpha=0.18, linewidth=0)
        axis.set_title(title)
        axis.set_xlabel("environment steps [million]")
        axis.set_ylim(LOWEST, HIGHEST)
        axis.margins(x=0.01)
        _mark_solved(axis)
        _tidy(axis)
    axes[0].set_ylabel("mean return, 10 held-out starts")
    _legend_below(figure, axes[0])
    figure.suptitle(
        f"LunarLander-v3, learning curves: median (line) and middle half (band) of the seeds; below {LOWEST} not shown"
    )
    _save(figure, path)


def argmax_and_sampled(runs: Lines, rows: Iterable[Row], path: Path) -> None:
    """Final return both ways, and the entropy at the start states, of every row."""
    present = [row for row in rows if of_row(runs, row.name, REPORT_SEEDS)]
    figure = Figure(figsize=(12, 1.9 + 0.34 * len(present)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
    for place, row in enumerate(present):
        own = of_row(runs, row.name, REPORT_SEEDS)
        colour = FAMILY_COLOURS[row.family]
        middles = []
        for way, face in (("argmax", colour), ("sampled", "white")):
            found = spread(own, f"{way}_mean")
            middles.append(found.middle if found else math.nan)
            _dots(left, found.values if found else (), place, colour, face)
            left.scatter(_seen(middles[-1]), place, s=75, color=face, edgecolors=colour, linewidths=1.8, zorder=3)
        left.plot(_seen(middles), [place, place], color=colour, linewidth=1.5, zorder=1)
        entropy = spread(own, "start_entropy")
        if entropy is not None:
            _dots(right, entropy.values, place, colour, colour)
            right.scatter(entropy.middle, place, s=75, color=colour, zorder=3)
    left.scatter([], [], s=75, color="0.3", label="argmax, middle of the seeds")
    left.scatter([], [], s=75, color="white", edgecolors="0.3", linewidths=1.8, label="sampled, middle of the seeds")
    left.scatter([], [], s=18, color="0.3", alpha=0.55, label="argmax, one seed")
    left.scatter([], [], s=18, color="white", edgecolors="0.3", alpha=0.55, label="sampled, one seed")
    _name_rows(left, present)
    left.set_xlim(LOWEST_FINAL, HIGHEST)
    left.set_xlabel(f"final mean return, {REPORTED_EPISODES} reported starts")
    left.axvline(SOLVED, color="0.4", linestyle="--", linewidth=1)
    left.set_title("the same policy, flown both ways")
    right.set_title("how random it is")
    right.set_xlabel("entropy at the start states [nats]")
    right.set_xlim(0, 1.5)
    right.axvline(UNIFORM, color="0.4", linestyle=":", linewidth=1)
    top = right.get_xaxis_transform()
    right.text(UNIFORM - 0.02, 0.995, "uniform: ln 4", transform=top, ha="right", va="top", color="0.4", fontsize=9)
    left.text(
        SOLVED - 8, 0.995, "solved", transform=left.get_xaxis_transform(), ha="right", va="top", color="0.4", fontsize=9
    )
    for axis in (left, right):
        _tidy(axis, grid="x")
    _legend_below(figure, left)
    figure.suptitle("LunarLander-v3: interquartile mean of the seeds (large) and each seed (small)")
    _save(figure, path)


def progression(stages: Lines, rows: Iterable[Row], path: Path) -> None:
    """Return, landings and engine use from the same starts at six stages of training, by argmax."""
    panels: list[tuple[str, str, Sequence[float] | None]] = [
        ("argmax_mean", "mean return", published.GRPO_PROGRESS_RETURN),
        ("argmax_landed", "share landed", published.GRPO_PROGRESS_LANDED),
        ("argmax_engine", "engine use per episode [reward units]", None),
    ]
    figure = Figure(figsize=(14, 5), layout="constrained")
    axes = figure.subplots(1, 3)
    places = np.arange(len(SHARES))
    for axis, (column, title, there) in zip(axes, panels, strict=True):
        for row in rows:
            seeds = _by_seed(of_row(stages, row.name, REPORT_SEEDS))
            if not seeds:
                continue
            values = np.array([[line[column] for line in own] for own in seeds])
            axis.plot(places, values.T, color=_colour(row), linewidth=0.8, alpha=0.35)
            label = f"{row.name} ({_seeds(len(seeds))})"
            axis.plot(
                places,
                trim_mean(values, 0.25, axis=0),
                _line(row),
                color=_colour(row),
                linewidth=2.2,
                marker="o",
                markersize=5,
                label=label,
            )
        if there is not None:
            axis.plot(
                places,
                there,
                color="0.25",
                linestyle=":",
                marker="s",
                markersize=4,
                label="published GRPO, median seed",
            )
        axis.set_title(title)
        axis.set_xticks(places, [f"{share * 100:g} %" for share in SHARES])
        axis.set_xlabel("share of the training steps")
        _tidy(axis)
    axes[0].set_ylim(-700, HIGHEST)
    axes[0].set_xlim(-0.25, len(SHARES) - 0.75)
    _mark_solved(axes[0])
    axes[1].set_ylim(-0.03, 1.03)
    axes[1].yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes[2].set_ylim(bottom=0)
    _legend_below(figure, axes[0])
    figure.suptitle(
        f"LunarLander-v3, the same {PROGRESS_EPISODES} held-out starts as training goes on, argmax: "
        "interquartile mean of the seeds (thick), each seed (thin)"
    )
    _save(figure, path)


def ablations(runs: Lines, rows: Iterable[Row], path: Path) -> None:
    """Interquartile mean of the final return of every row, with its interval, both ways."""
    present = [row for row in rows if of_row(runs, row.name, REPORT_SEEDS)]
    figure = Figure(figsize=(12.5, 1.9 + 0.36 * len(present)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (way, title) in zip(
        axes, [("argmax", "most probable action (argmax)"), ("sampled", "sampled action, as in training")], strict=True
    ):
        for place, row in enumerate(present):
            own = of_row(runs, row.name, REPORT_SEEDS)
            found = spread(own, f"{way}_mean")
            if found is None:
                continue
            colour = FAMILY_COLOURS[row.family]
            axis.barh(place, _seen(found.middle), height=0.66, color=colour, alpha=0.55)
            if found.interval is not None:
                axis.plot(_seen(found.interval), [place, place], color="0.15", linewidth=1.6, solid_capstyle="butt")
            _dots(axis, found.values, place, colour, colour)
        axis.axvline(0, color="0.2", linewidth=0.8)
        axis.axvline(SOLVED, color="0.4", linestyle="--", linewidth=1)
        axis.text(
            SOLVED - 8,
            0.995,
            "solved",
            transform=axis.get_xaxis_transform(),
            ha="right",
            va="top",
            color="0.4",
            fontsize=9,
        )
        axis.set_xlim(LOWEST_FINAL, HIGHEST)
        axis.set_title(title)
        axis.set_xlabel(f"final mean return, {REPORTED_EPISODES} reported starts")
        _tidy(axis, grid="x")
    _name_rows(axes[0], present)
    families = dict.fromkeys(row.family for row in present)
    patches = [Patch(color=FAMILY_COLOURS[family], alpha=0.55, label=family, linewidth=0) for family in families]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        "LunarLander-v3: interquartile mean of the seeds (bar), its 95 % bootstrap interval (line), each seed (dot); "
        f"cut at {LOWEST_FINAL}",
        fontsize=11,
    )
    _save(figure, path)


def _by_seed(lines: Lines) -> list[list[Any]]:
    seeds = sorted({line["seed"] for line in lines})
    return [[line for line in lines if line["seed"] == seed] for seed in seeds]


def _on_one_grid(seeds: list[list[Any]], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Evaluations come at an iteration's end: every seed is read off at the same steps, as far as all of them go."""
    end = min(own[-1]["num_steps"] for own in seeds)
    steps = np.arange(0, end + GRID_STEPS, GRID_STEPS).clip(max=end)
    values = [np.interp(steps, [line["num_steps"] for line in own], [line[column] for line in own]) for own in seeds]
    return steps, np.array(values)


def _colour(row: Row) -> str:
    return COLOURS.get(row.name, FAMILY_COLOURS[row.family])


def _line(row: Row) -> str:
    return "--" if row.name in DASHED else "-"


def _legend_below(figure: Figure, axis: Axes) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, handlelength=3, frameon=False)


def _seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def _seen(values: Any) -> Any:
    """Where values are drawn: those outside stand at the edge."""
    return np.clip(values, LOWEST_FINAL, HIGHEST)


def _dots(axis: Axes, values: Sequence[float], place: int, colour: str, face: str) -> None:
    """A small dot per seed; one that lies further left is named at the edge."""
    inside = [value for value in values if value >= LOWEST_FINAL]
    axis.scatter(inside, [place] * len(inside), s=18, color=face, edgecolors=colour, alpha=0.55, linewidths=1, zorder=2)
    outside = [f"{value:,.0f}" for value in sorted(values) if value < LOWEST_FINAL]
    if outside:
        text = "\N{BLACK LEFT-POINTING SMALL TRIANGLE} " + ", ".join(outside)
        style = {"fontsize": 9, "color": colour, "va": "bottom", "zorder": 4}
        axis.annotate(text, (LOWEST_FINAL, place), (3, 3), textcoords="offset points", **style)


def _name_rows(axis: Axes, rows: Sequence[Row]) -> None:
    axis.set_yticks(range(len(rows)), [row.name for row in rows])
    for label, row in zip(axis.get_yticklabels(), rows, strict=True):
        label.set_color(FAMILY_COLOURS[row.family])
    axis.set_ylim(len(rows) - 0.4, -0.9)


def _mark_solved(axis: Axes) -> None:
    axis.axhline(SOLVED, color="0.4", linestyle="--", linewidth=1, zorder=0)
    axis.text(0.01, SOLVED + 4, "solved", transform=axis.get_yaxis_transform(), color="0.4", fontsize=9, va="bottom")


def _tidy(axis: Axes, grid: Literal["both", "x"] = "both") -> None:
    axis.grid(axis=grid, alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
