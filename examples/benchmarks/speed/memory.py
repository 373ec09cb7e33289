"""Part memory: bytes per step, and growth over a long run."""

import argparse
import math
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import grpolib as gl
from grpolib import GRPOTrainer, TimestepLeaveOneOut, mlp, recipes
from speed.scaling import FixedLength
from speed.turns import Rows, Table, in_fresh_process


def peak_of_iteration(num_groups: int) -> dict[str, int]:
    """One iteration on groups of 16 episodes of 250 steps: its steps, the batch's bytes, the process's peak."""
    seen: dict[str, int] = {}

    def estimator(batch: Any) -> Tensor:
        columns = (batch.inputs.observations, batch.inputs.actions, batch.log_probs, batch.rewards)
        seen.update(steps=batch.num_steps, batch=sum(column.nbytes for column in columns))
        return TimestepLeaveOneOut()(batch)

    plan = gl.MinibatchPlan(epochs=2, size=1024)
    recipe = recipes.critic_free().replaced(advantages=estimator, plan=plan, groups_per_step=num_groups)
    GRPOTrainer(mlp(8, 64, 64, 4), partial(FixedLength, 250), recipe=recipe).step()
    return {**seen, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def resources_over_time(iterations: int) -> Rows:
    """What the process and its two workers hold after a sixth, a half and all of the iterations."""
    recipe = recipes.critic_free().replaced(plan=gl.MinibatchPlan(epochs=1, size=256), group_size=4)
    trainer, rows = GRPOTrainer(mlp(4, 64, 64, 2), "CartPole-v1", recipe=recipe, workers=2), []
    for iteration in range(1, iterations + 1):
        trainer.step()
        if iteration in (math.ceil(iterations / 6), math.ceil(iterations / 2), iterations):
            rows.append({"iteration": iteration, **resources()})
    trainer.sampler.close()
    return rows


def resources() -> dict[str, float]:
    stats = {int(stat.parent.name): fields_of(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    children = [process for process, fields in stats.items() if fields and int(fields[1]) == os.getpid()]
    page = os.sysconf("SC_PAGE_SIZE") / 1e6
    return {
        "resident, trainer [MB]": int(stats[os.getpid()][21]) * page,
        "resident, children [MB]": sum(int(stats[child][21]) for child in children) * page,
        "child processes": len(children),
        "/dev/shm entries": len(os.listdir("/dev/shm")),
        "open files": len(os.listdir("/proc/self/fd")),
    }


def fields_of(stat: Path) -> list[str]:
    """State, parent and so on (see proc(5)); nothing where the process is gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def memory(settings: argparse.Namespace) -> dict[str, Table]:
    # Large blocks go back to the system at once, so that the peak is of what is alive and not of a torn heap.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    sizes = [max(1, settings.steps // (16 * 250) // part) for part in (20, 10, 5, 2)]
    peaks = [in_fresh_process(peak_of_iteration, size) for size in sizes]
    steps, peak = [record["steps"] for record in peaks], [record["peak"] for record in peaks]
    slope = float(np.polyfit(steps, peak, 1)[0]) if len(set(steps)) > 1 else math.nan
    own = peaks[-1]["batch"] / steps[-1]
    rows = [{"steps": r["steps"], "batch [MB]": r["batch"] / 1e6, "peak [MB]": r["peak"] / 1e6} for r in peaks]
    note = (
        "Peak resident memory of a process that samples one batch and learns from it, with "
        "MALLOC_MMAP_THRESHOLD_=65536, so that what was freed is not counted. Slope: "
        f"{slope:.0f} bytes per step, {slope / own:.1f} times the batch's own {own:.0f}."
    )
    iterations = min(300, max(3, settings.steps // 1000))
    growth = in_fresh_process(resources_over_time, iterations)
    over_time = f"{iterations} iterations of CartPole-v1 with 2 workers; /dev/shm is the whole machine's."
    return {"memory": Table(note, rows, peaks), "resources": Table(over_time, growth)}
