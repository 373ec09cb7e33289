"""One run, from a fresh policy to its line in the results."""

import csv
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

import grpolib
from grpolib import Callback, EvaluateEvery, EvaluationReport, Trainer, load_policy, save_policy
from grpolib.callbacks import evaluation_line
from grpolib.evaluation import REPORTED_SEEDS
from study.locks import locked
from study.outcomes import measure
from study.results import CURVE_COLUMNS, Results
from study.rows import ENV, Row, new_policy

TOTAL_STEPS = 2_000_000
EVALUATE_EVERY, CHOOSING_EPISODES = 50_000, 10
REPORTED_EPISODES = 50
SHARES = (0.0, 0.025, 0.1, 0.25, 0.5, 1.0)
"""Snapshots, in shares of the total steps."""
PROGRESS_SEEDS, PROGRESS_EPISODES = 1_500_000_000, 20
"""The starts from which every snapshot is flown; used for nothing else."""
LAST = 10
"""Iterations that count as the end of training."""


class PrintEvaluations(Callback):
    """A line per evaluation, for the run's log."""

    def on_evaluation(self, trainer: Trainer, report: EvaluationReport) -> None:
        print(evaluation_line(trainer.num_steps, report), flush=True)


class Snapshots(Callback):
    """Keeps the policy at the `SHARES` of a run.

    Args:
        folder: Each snapshot gets a folder in it, named by its share.
        total_steps: Of the run.
    """

    def __init__(self, folder: Path, total_steps: int) -> None:
        self.folder, self._total_steps, self._due = folder, total_steps, list(SHARES)

    def on_train_start(self, trainer: Trainer) -> None:
        self._save_due(trainer)

    def on_iteration_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._save_due(trainer)

    def _save_due(self, trainer: Trainer) -> None:
        while self._due and trainer.num_steps >= self._due[0] * self._total_steps:
            share = self._due.pop(0)
            save_policy(trainer.policy, self.folder / str(share), share=share, num_steps=trainer.num_steps)


def run(row: Row, seed: int, *, total_steps: int, results: Results, work: Path) -> bool:
    """Train, measure and add to the results; False where that is done, or being done by another process.

    Args:
        row: What to run.
        seed: Of the policy and the trainer.
        total_steps: Environment steps.
        results: Where the finished run goes.
        work: Gets the run's folder: metrics, evaluations, policies. What an earlier try left half-done is removed.
    """
    name = f"{row.name}-{seed}"
    try:
        with locked(work / f"{name}.lock", wait=False):
            if (row.name, seed) in results.finished():
                return False
            folder = work / f"{name}.partial"
            shutil.rmtree(folder, ignore_errors=True)
            added = results.add(*_measured(row, seed, total_steps, folder))
            folder.rename(_free(work, name))
            return added
    except BlockingIOError:
        print(f"{name} is being run by another process")
        return False


def _measured(
    row: Row, seed: int, total_steps: int, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Train in `folder`; the lines for runs.csv, curves.csv and progress.csv."""
    key = {"row": row.name, "seed": seed}
    commit = git_commit()
    trainer = row.make_trainer(
        seed,
        total_steps,
        run_folder=folder,
        workers=0,
        compile="auto",
        callbacks=[
            EvaluateEvery(EVALUATE_EVERY, CHOOSING_EPISODES, env=ENV),
            PrintEvaluations(),
            Snapshots(folder / "snapshots", total_steps),
        ],
    )
    start = time.perf_counter()
    trainer.train(total_steps=total_steps)
    seconds = time.perf_counter() - start
    trainer.sampler.close()
    final, _ = _measured_policy(folder / "last", REPORTED_SEEDS, REPORTED_EPISODES)
    best, chosen = _measured_policy(folder / "best", REPORTED_SEEDS, REPORTED_EPISODES)
    line = {
        **key,
        "steps": trainer.num_steps,
        **final,
        "best_steps": chosen["num_steps"],
        **{f"best_{name}": value for name, value in best.items()},
        **diagnostics(_table(folder / "metrics.csv")),
        "seconds": seconds,
        "grpolib": grpolib.__version__,
        "commit": commit,
        "torch": torch.__version__,
    }
    curve = [
        {**{name: point.get(name) for name in CURVE_COLUMNS}, **key, "num_steps": int(point["num_steps"])}
        for point in _table(folder / "evaluations.csv")
    ]
    return line, curve, [{**key, **stage} for stage in _stages(folder / "snapshots")]


def diagnostics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of a run's metrics.csv; nan where the recipe has no such number."""

    def over(name: str, reduce: Any, rows: Sequence[Mapping[str, float]] = metrics) -> float:
        values = [row[name] for row in rows if not math.isnan(row.get(name, math.nan))]
        return float(reduce(values)) if values else math.nan

    return {
        "iterations": len(metrics),
        "kl_reference_median": over("kl_reference", np.median),
        "kl_reference_max": over("kl_reference", max),
        "kl_old_median": over("kl_old_k3", np.median),
        "kl_old_max": over("kl_old_k3", max),
        "clip_fraction_median": over("clip_fraction", np.median),
        "clip_fraction_max": over("clip_fraction", max),
        "group_return_std": over("group_return_std", np.mean, metrics[-LAST:]),
        "degenerate_fraction_max": over("degenerate_fraction", max),
        "near_degenerate_fraction_max": over("near_degenerate_fraction", max),
        "explained_variance": over("explained_variance", np.median, metrics[-LAST:]),
    }


def git_commit() -> str:
    """The commit that runs, with a + where the code differs from it; empty outside a repository."""
    here = Path(__file__).parents[3]
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    changed = _git(here, "status", "--porcelain", "--", "src", "examples/benchmarks/study")
    return f"{head}+" if head and changed else head


def _git(folder: Path, *command: str) -> str:
    try:
        done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _measured_policy(folder: Path, first_seed: int, episodes: int) -> tuple[dict[str, float], dict[str, Any]]:
    """A saved policy's figures, and what stands beside it."""
    policy = new_policy()
    information = load_policy(policy, folder)
    return measure(policy, episodes=episodes, first_seed=first_seed), information


def _stages(folder: Path) -> Iterator[dict[str, Any]]:
    for share in SHARES:
        figures, information = _measured_policy(folder / str(share), PROGRESS_SEEDS, PROGRESS_EPISODES)
        yield {"share": share, "num_steps": information["num_steps"], **figures}


def _table(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def _free(work: Path, name: str) -> Path:
    """A folder that is not there yet: an earlier run's is kept."""
    candidates = (work / (f"{name}-again{k}" if k else name) for k in count())
    return next(folder for folder in candidates if not folder.exists())
