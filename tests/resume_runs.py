"""Runs that are stopped and go on, also in processes of their own."""

import csv
import multiprocessing
import shutil
from functools import partial
from pathlib import Path

import torch

from grpolib import (
    CheckpointEvery,
    EvaluateEvery,
    GRPOTrainer,
    LearningRate,
    Linear,
    MinibatchPlan,
    PPOTrainer,
    ReferencePolicy,
    mlp,
    recipes,
)
from grpolib.archive import STATE, TENSORS

ENV = "CartPole-v1"
PLAN = MinibatchPlan(epochs=2, size=32)
GROUPS = {"group_size": 4, "groups_per_step": 2, "plan": PLAN}
KINDS = {
    "grpo": (GRPOTrainer, {**GROUPS, "reference": ReferencePolicy(refresh_every=2, mix=0.5)}),
    "critic_free": (
        GRPOTrainer,
        {
            **GROUPS,
            "recipe": recipes.critic_free(),
            "schedules": [LearningRate(Linear(3e-3, 0.0, iterations=8))],
            "optimizer": partial(torch.optim.SGD, lr=1.0, momentum=0.9),
        },
    ),
    "ppo": (PPOTrainer, {"num_envs": 10, "steps": 12, "plan": PLAN}),
}


def started(kind, folder, workers=0):
    make, pieces = KINDS[kind]
    return make(mlp(4, 8, 2, seed=0), ENV, run_folder=folder, workers=workers, seed=3, **callbacks(), **pieces)


def resumed(kind, folder, workers=0):
    make, pieces = KINDS[kind]
    return make.resume(folder, mlp(4, 8, 2, seed=9), ENV, workers=workers, **callbacks(), **pieces)


def callbacks():
    return {"callbacks": [CheckpointEvery(1, keep_last=2), EvaluateEvery(100, episodes=1)]}


def go_to(kind, folder, workers, iterations):
    """Start the run, or go on with it, up to an iteration; without a checkpoint there is nothing to go on from."""
    torch.set_num_threads(1)
    if checkpointed(folder) is None:
        shutil.rmtree(folder, ignore_errors=True)
        trainer = started(kind, folder, workers)
    else:
        trainer = resumed(kind, folder, workers)
    if trainer.iteration < iterations:
        trainer.train(iterations=iterations - trainer.iteration)
    trainer.close()


def checkpointed(folder):
    """The iteration of a run's latest checkpoint, or None."""
    latest = Path(folder) / "checkpoints" / "latest"
    return int(latest.read_text()) if latest.exists() else None


TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}


def rows_of(path):
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in TIMINGS} for row in csv.DictReader(file)]


def assert_same_run(one, other):
    """Every number that a run leaves behind, timings aside: parameters, moments, counters, tables."""
    for name in ("metrics.csv", "evaluations.csv"):
        assert rows_of(one / name) == rows_of(other / name)
    names = [(folder / "checkpoints" / "latest").read_text() for folder in (one, other)]
    assert names[0] == names[1]
    first, second = (folder / "checkpoints" / name.strip() for folder, name in zip((one, other), names, strict=True))
    for name in (STATE, TENSORS):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def process(*arguments):
    """A new process that runs `go_to`; it comes from a server that has nothing but the imports behind it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["grpolib"])
    new = context.Process(target=go_to, args=arguments)
    new.start()
    return new
