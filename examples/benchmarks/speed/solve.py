"""Part solve: seconds of training until an argmax evaluation reaches 200."""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

import grpolib as gl
from grpolib import GRPOTrainer, mlp, recipes
from grpolib.evaluation import CHOOSING_SEEDS
from speed.rates import EVALUATE_EVERY, LANDER, SB3, SB3_ROLLOUT, SOLVED, make_ppo
from speed.turns import Table, in_fresh_process, is_installed, say
from speed.writing import number


class Judge(gl.Callback):
    """Evaluates now and then, and knows how long training alone has taken."""

    def __init__(self, cap: int) -> None:
        self.cap, self.evaluations, self.start = cap, 0, time.perf_counter()
        self.verdict: dict[str, Any] = {}

    def on_iteration_end(self, trainer: gl.Trainer, metrics: Any) -> bool:
        return not self.is_finished(trainer.policy, trainer.num_steps)

    def is_finished(self, policy: Any, steps: int) -> bool:
        if steps // EVALUATE_EVERY == self.evaluations and steps < self.cap:
            return False
        paused, self.evaluations = time.perf_counter(), steps // EVALUATE_EVERY
        mean = gl.evaluate(policy, LANDER, episodes=10, first_seed=CHOOSING_SEEDS).argmax.mean
        self.verdict = {"solved": mean >= SOLVED, "seconds": paused - self.start, "steps": steps, "return": mean}
        self.start += time.perf_counter() - paused
        return mean >= SOLVED or steps >= self.cap


def solve_grpolib(seed: int, cap: int) -> dict[str, Any]:
    judge, policy = Judge(cap), mlp(8, 64, 64, 4, seed=seed)
    fast: dict[str, Any] = {"workers": "auto", "compile": "auto"}
    short = partial(gymnasium.make, LANDER, max_episode_steps=400)
    trainer = GRPOTrainer(policy, short, recipe=recipes.critic_free(cap), seed=seed, callbacks=[judge], **fast)
    trainer.train(total_steps=cap)
    trainer.sampler.close()
    return judge.verdict


class Logits(nn.Module):
    """The actor of a Stable-Baselines3 policy, as the library takes it: observations -> logits."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor) -> Tensor:
        return self.policy.get_distribution(observations).distribution.logits


def solve_ppo(seed: int, cap: int) -> dict[str, Any]:
    """With the settings of rl-zoo, on one thread, which suits it."""
    torch.set_num_threads(1)
    model = make_ppo(seed, gamma=0.999, gae_lambda=0.98, ent_coef=0.01)
    judge = Judge(cap)
    while not judge.is_finished(Logits(model.policy), model.num_timesteps):
        model.learn(SB3_ROLLOUT, reset_num_timesteps=False)
    return judge.verdict


def solve(settings: argparse.Namespace) -> dict[str, Table]:
    contenders: dict[str, Callable[[int, int], Any]] = {"grpolib, critic-free": solve_grpolib}
    if is_installed("stable_baselines3", "its PPO"):
        contenders[f"{SB3} PPO"] = solve_ppo
    raw: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for seed in range(3):
        for name, run in contenders.items():
            raw[name].append(in_fresh_process(run, seed, settings.steps))
            say(f"  {name}, seed {seed}: {raw[name][-1]}")
    rows = []
    for name, runs in raw.items():
        row: dict[str, Any] = {"contender": name}
        for key, unit in (("seconds", "s"), ("steps", "steps")):
            found = [run[key] if run["solved"] else math.inf for run in runs]
            row |= {f"median [{unit}]": median(found), f"each seed [{unit}]": ", ".join(map(number, found))}
        rows.append(row)
    note = (
        f"Training alone, from nothing to the first argmax mean of at least {SOLVED} on 10 episodes, looked at every "
        f"{EVALUATE_EVERY:,} steps, at most {settings.steps:,}; seeds 0, 1, 2. Evaluations are not counted, starting "
        f"workers and compiling are. {SB3}: the settings of rl-zoo, 1 thread."
    )
    return {"solve": Table(note, rows, raw)}
