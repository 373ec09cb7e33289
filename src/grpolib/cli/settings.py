"""A run in plain values: what `train` was told, kept in the run's folder, so that other verbs can build it again."""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import nn

from grpolib.algorithms import A2CTrainer, GRPOTrainer, PPOTrainer
from grpolib.callbacks import Callback, CheckpointEvery, EvaluateEvery
from grpolib.checkpoint import load_policy, write_json
from grpolib.cli.presets import Algorithm
from grpolib.minibatch import Reduction
from grpolib.policies import network
from grpolib.recipe import Recipe
from grpolib.recipes import a2c, critic_free, grpo, ppo
from grpolib.trainer import Trainer

FILE = "command.json"
TRAINERS: dict[Algorithm, type[Trainer]] = {
    "critic-free": GRPOTrainer,
    "grpo": GRPOTrainer,
    "ppo": PPOTrainer,
    "a2c": A2CTrainer,
}


@dataclass(frozen=True)
class Changes:
    """Fields of the recipe that differ from the algorithm's own.

    Args:
        group_size: Episodes per group, G.
        groups_per_step: Groups per iteration, M.
        reduction: What "mean" means.
        max_grad_norm: The gradient is scaled down to this norm.
        epochs: Passes over a batch.
        minibatch: Steps per optimizer step.
        learning_rate: Of Adam, constant.
    """

    group_size: int | None = None
    groups_per_step: int | None = None
    reduction: Reduction | None = None
    max_grad_norm: float | None = None
    epochs: int | None = None
    minibatch: int | None = None
    learning_rate: float | None = None

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with these changes."""
        names = ("group_size", "groups_per_step", "reduction", "max_grad_norm")
        pieces: dict[str, Any] = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        plan = recipe.plan
        epochs = plan.epochs if self.epochs is None else self.epochs
        size = plan.size if self.minibatch is None else self.minibatch
        pieces["plan"] = dataclasses.replace(plan, epochs=epochs, size=size)
        if self.learning_rate is not None:
            adam = partial(torch.optim.Adam, lr=self.learning_rate, eps=1e-5, fused=True)
            pieces |= {"optimizer": adam, "schedules": ()}
        return dataclasses.replace(recipe, **pieces)


@dataclass(frozen=True)
class Settings:
    """What a run is made of, in values that JSON holds."""

    env: str
    algorithm: Algorithm
    total_steps: int
    seed: int
    width: int
    max_episode_steps: int | None
    changes: Changes

    @property
    def source(self) -> Any:
        """The training environment."""
        if self.max_episode_steps is None:
            return self.env
        return partial(gymnasium.make, self.env, max_episode_steps=self.max_episode_steps)

    @property
    def label(self) -> str:
        """Runs with one label differ by their seed alone."""
        changed = [f"{n}={v}" for n, v in dataclasses.asdict(self.changes).items() if v is not None]
        return ", ".join([self.env, self.algorithm, f"{self.total_steps:,} steps", *changed])

    def recipe(self) -> Recipe:
        """The algorithm's recipe with the changes."""
        if self.algorithm == "grpo":
            return self.changes.of(grpo())
        if self.algorithm == "critic-free":
            return self.changes.of(critic_free(self.total_steps))
        if self.changes.group_size is not None or self.changes.groups_per_step is not None:
            raise ValueError(f"{self.algorithm} has no groups: leave --group-size and --groups-per-step out")
        return self.changes.of((ppo if self.algorithm == "ppo" else a2c)(self.total_steps))

    def policy(self) -> nn.Module:
        """A new network for the environment.

        Raises:
            ValueError: A space that is not supported.
        """
        env = gymnasium.make(self.env)
        policy = network(env.observation_space, env.action_space, width=self.width, seed=self.seed)
        env.close()
        return policy

    def trainer(self, policy: nn.Module, **keywords: Any) -> Trainer:
        """A trainer of the policy."""
        make: Any = TRAINERS[self.algorithm]
        return self._made(make, policy, keywords)

    def resumed(self, run: Path, policy: nn.Module, **keywords: Any) -> Trainer:
        """The trainer that goes on from the run's latest checkpoint."""
        make: Any = partial(TRAINERS[self.algorithm].resume, run)
        return self._made(make, policy, keywords)

    def _made(self, make: Any, policy: nn.Module, keywords: dict[str, Any]) -> Trainer:
        callbacks: list[Callback] = [EvaluateEvery(env=self.env), CheckpointEvery()]
        fixed = {"recipe": self.recipe(), "seed": self.seed, "callbacks": [*callbacks, *keywords.pop("callbacks", ())]}
        trainer: Trainer = make(policy, self.source, **fixed, **keywords)
        return trainer

    def save(self, run: Path) -> None:
        """Write them into the run's folder."""
        write_json(run / FILE, dataclasses.asdict(self))


def read_settings(run: Path) -> Settings:
    """The settings of a run; nothing in the file is imported or executed.

    Raises:
        FileNotFoundError: No run of this command is there.
        ValueError: The file is damaged.
    """
    path = run / FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {FILE} in {run}: give the folder of a run that `grpolib train` made")
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        values["changes"] = Changes(**values["changes"])
        settings = Settings(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(settings.env, str):
        raise ValueError(f"{path} names the environment {settings.env!r}: it is no Gymnasium id")
    if settings.algorithm not in TRAINERS:
        raise ValueError(f"{path} names the algorithm {settings.algorithm!r}: it is one of {', '.join(TRAINERS)}")
    return settings


def find_here(env: str) -> None:
    """Let the module of an id `module:id`, which the user typed, lie in the present folder."""
    if ":" in env and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # behind all others, so that nothing there takes the place of a library


def read_playable(run: Path, env: str | None) -> Settings:
    """The settings of a run whose environment is to be made.

    Raises:
        ValueError: The environment has to be imported and was not given again, or another one was given.
    """
    settings = read_settings(run)
    if env is not None and env != settings.env:
        raise ValueError(f"{run} is a run of {settings.env}, not of {env}: leave --env out, or give that")
    if env is None and ":" in settings.env:
        raise ValueError(
            f"{run} names the environment {settings.env!r}, and a file may not say what is imported: where you trust "
            f"it, give --env {settings.env}"
        )
    find_here(settings.env)
    return settings


def read_policy(run: Path, which: str, env: str | None) -> tuple[Settings, nn.Module]:
    """A run's settings, and its best or last policy."""
    settings = read_playable(run, env)
    policy = settings.policy()
    load_policy(policy, run / which)
    return settings, policy
