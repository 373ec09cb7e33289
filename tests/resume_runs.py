"""Runs that are stopped and go on, also in processes of their own."""

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
    """Start the run, or go on with it, up to an iteration."""
    torch.set_num_threads(1)
    there = (Path(folder) / "checkpoints" / "latest").exists()
    trainer = (resumed if there else started)(kind, folder, workers)
    if trainer.iteration < iterations:
        trainer.train(iterations=iterations - trainer.iteration)
    trainer.close()
