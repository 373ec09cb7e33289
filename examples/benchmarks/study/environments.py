"""Other environments with the recipe as it is, beside PPO at the same steps; nothing is tuned to any of them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch

import grpolib
from grpolib import GRPOTrainer, PPOTrainer, Recipe, Trainer, evaluate, network, recipes
from study.lines import Line, add_once, read_runs
from study.running import REPORTED_EPISODES, git_commit
from study.spread import spread
from study.tables import both_ways, markdown, plain

SEEDS = range(3)
STEPS = {
    "CartPole-v1": 200_000,
    "Acrobot-v1": 500_000,
    "LunarLanderContinuous-v3": 500_000,
    "MountainCarContinuous-v0": 500_000,
    "BipedalWalker-v3": 2_000_000,
}
FIGURES = ("argmax_mean", "sampled_mean", "argmax_solved", "sampled_solved", "start_entropy")
COLUMNS = ("row", "seed", "steps", *FIGURES, "untrained", "seconds", "grpolib", "commit", "torch")
FILE = "environments.csv"


class Row(NamedTuple):
    """An environment and a recipe, both at their defaults."""

    env: str
    algorithm: str
    trainer: Callable[..., Trainer]
    recipe: Callable[[int], Recipe]

    @property
    def name(self) -> str:
        """In the file and on the command line."""
        return f"{self.env}-{self.algorithm}"


ROWS = [
    row
    for env in STEPS
    for row in (
        Row(env, "critic-free", GRPOTrainer, recipes.critic_free),
        Row(env, "ppo", PPOTrainer, recipes.ppo),
    )
]
BY_NAME = {row.name: row for row in ROWS}


def run(row: Row, seed: int, *, total_steps: int, results: Path) -> bool:
    """Train, evaluate and add a line to `environments.csv`; False where the run is there already.

    Args:
        row: What to run.
        seed: Of the policy and the trainer.
        total_steps: Environment steps.
        results: Folder of the file.
    """
    env = gymnasium.make(row.env)
    policy = network(env.observation_space, env.action_space, seed=seed)
    env.close()
    untrained = evaluate(policy, row.env, episodes=REPORTED_EPISODES).sampled.mean
    trainer = row.trainer(policy, row.env, recipe=row.recipe(total_steps), seed=seed, compile="auto")
    start = time.perf_counter()
    trainer.train(total_steps=total_steps)
    seconds = time.perf_counter() - start
    trainer.close()
    found = evaluate(policy, row.env, episodes=REPORTED_EPISODES).as_row()
    line = {
        "row": row.name,
        "seed": seed,
        "steps": trainer.num_steps,
        **{name: found[name] for name in FIGURES},
        "untrained": untrained,
        "seconds": seconds,
        "grpolib": grpolib.__version__,
        "commit": git_commit(),
        "torch": torch.__version__,
    }
    return add_once(results / FILE, COLUMNS, line)


def finished(results: Path) -> Sequence[Line]:
    """A line per finished run."""
    return read_runs(results / FILE, COLUMNS)


def table(runs: Sequence[Line]) -> str:
    """A line per environment and recipe: returns both ways, over the seeds and seed by seed."""
    lines = [_cells(row, own) for row in ROWS if (own := [line for line in runs if line["row"] == row.name])]
    header = ["environment", "steps", "recipe", "seeds", "argmax", "sampled", "each, argmax / sampled"]
    return markdown([*header, "untrained, sampled", "solved from"], lines, right=(1, 3, 4, 5, 6, 7, 8))


def _cells(row: Row, own: Sequence[Line]) -> list[str]:
    threshold: Any = gymnasium.spec(row.env).reward_threshold
    by_seed = sorted(own, key=lambda line: line["seed"])
    return [
        row.env,
        f"{STEPS[row.env]:,}",
        f"`{row.algorithm}`",
        str(len(own)),
        str(spread(own, "argmax_mean")),
        str(spread(own, "sampled_mean")),
        ", ".join(map(both_ways, by_seed)),
        str(spread(own, "untrained")),
        plain(threshold),
    ]
