"""Part throughput: seconds per environment step and per update."""

import argparse
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

import grpolib as gl
from grpolib import GRPOTrainer, mlp, recipes
from grpolib.evaluation import CHOOSING_SEEDS
from grpolib.metrics import MetricMeans
from grpolib.sampling.processes import available_cores
from grpolib.sampling.rollout import one_torch_thread
from grpolib.updates import Update
from speed.published import PlainGRPO
from speed.turns import Call, Rows, Table, in_turns, is_installed, medians, on_one_thread, seconds_of

LANDER, SOLVED, EVALUATE_EVERY = "LunarLander-v3", 200, 50_000
SB3, SB3_ROLLOUT = "Stable-Baselines3", 16 * 1024


class Iteration(NamedTuple):
    """What one iteration did, and the seconds of its rollouts and of everything else."""

    steps: int
    updates: int
    sampling: float
    updating: float


def is_enough(iterations: Sequence[Iteration], steps: int) -> bool:
    return sum(iteration.steps for iteration in iterations[1:]) >= steps


def rates(iterations: Sequence[Iteration]) -> dict[str, float]:
    """Seconds per step and per update after the first iteration, and what the first one took beyond that."""
    steps, updates, sampling, updating = map(sum, zip(*iterations[1:], strict=True))
    step, update, first = sampling / steps, updating / updates, iterations[0]
    starting = max(0.0, first.sampling - first.steps * step)
    compiling = max(0.0, first.updating - first.updates * update)
    return {"step": step, "update": update, "starting": starting, "compiling": compiling, "evaluation": math.nan}


def published_rates(steps: int) -> dict[str, float]:
    run, iterations = PlainGRPO(), []
    while not is_enough(iterations, steps):
        start = time.perf_counter()
        rollout = run.collect()
        sampled = time.perf_counter()
        updates = run.learn(rollout)
        iterations.append(Iteration(len(rollout.actions), updates, sampled - start, time.perf_counter() - sampled))
    return rates(iterations)


def make_ppo(seed: int, *, subprocesses: bool = False, **settings: Any) -> Any:
    """Stable-Baselines3's PPO on 16 environments of 1,024 steps, with minibatches of 64 and 4 epochs."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    envs = make_vec_env(LANDER, 16, seed=seed, vec_env_cls=SubprocVecEnv if subprocesses else DummyVecEnv)
    settings |= {"n_steps": SB3_ROLLOUT // 16, "batch_size": 64, "n_epochs": 4, "learning_rate": 3e-4}
    return PPO("MlpPolicy", envs, **settings, seed=seed, device="cpu")


def ppo_rates(steps: int, subprocesses: bool = False) -> dict[str, float]:
    model, iterations = make_ppo(0, subprocesses=subprocesses), []
    sampling, updating = timed_calls(model, "collect_rollouts"), timed_calls(model, "train")
    while not is_enough(iterations, steps):
        model.learn(SB3_ROLLOUT, reset_num_timesteps=False)
        iterations.append(Iteration(SB3_ROLLOUT, 4 * SB3_ROLLOUT // 64, sampling[-1], updating[-1]))
    model.env.close()
    return rates(iterations)


def timed_calls(owner: Any, name: str) -> list[float]:
    """The seconds of every call of a method from now on."""
    method, seconds = getattr(owner, name), []

    def timed(*arguments: Any, **keywords: Any) -> Any:
        results: list[Any] = []
        seconds.append(seconds_of(lambda: results.append(method(*arguments, **keywords))))
        return results[0]

    setattr(owner, name, timed)
    return seconds


def grpolib_rates(steps: int, workers: int | str, compiled: bool) -> dict[str, float]:
    iterations: list[Iteration] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # empty: compiling takes as long as it does the first time
        trainer = GRPOTrainer(mlp(8, 64, 64, 4), LANDER, recipe=recipes.grpo(), workers=workers, compile=compiled)
        while not is_enough(iterations, steps):
            before, metrics = trainer.num_steps, trainer.step()
            taken = trainer.num_steps - before
            timings = metrics["seconds_sampling"], metrics["seconds_updating"]
            iterations.append(Iteration(taken, 4 * math.ceil(taken / 64), *timings))
        judge = partial(trainer.evaluate, episodes=10, first_seed=CHOOSING_SEEDS)
        judge()  # makes the environments
        evaluation = seconds_of(judge)
        trainer.sampler.close()
    return {**rates(iterations), "evaluation": evaluation}


def floor_rates(steps: int) -> dict[str, float]:
    """Physics alone on all cores, then the compiled update alone, on one minibatch again and again."""
    cores, updates = available_cores(), max(1, steps * 4 // 64)
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(random_steps, [1000] * cores))
        physics = seconds_of(lambda: list(pool.map(random_steps, [steps // cores] * cores)))
    recipe, policy = recipes.grpo(), gl.as_policy(mlp(8, 64, 64, 4), gymnasium.spaces.Discrete(4))
    parameters = list(policy.parameters())
    update = Update(policy, None, recipe.loss, parameters, recipe.optimizer(parameters), recipe.max_grad_norm)
    update.compile(64)
    log_probs = torch.full((64,), -math.log(4))
    minibatch = gl.Minibatch(
        inputs=gl.StepInputs(torch.randn(64, 8), torch.randint(4, (64,))),
        old_log_probs=log_probs,
        advantages=torch.randn(64),
        weights=torch.full((64,), 1 / 64),
        reference_log_probs=log_probs,
    )
    with one_torch_thread():
        compiling = seconds_of(lambda: update(minibatch, MetricMeans()))
        updating = seconds_of(lambda: [update(minibatch, MetricMeans()) for _ in range(updates)])
    step, nothing = physics / (steps // cores * cores), math.nan
    return {"step": step, "update": updating / updates, "starting": 0, "compiling": compiling, "evaluation": nothing}


def random_steps(steps: int) -> None:
    env = gymnasium.make(LANDER)
    env.reset(seed=0)
    for action in np.random.default_rng(0).integers(4, size=steps).tolist():
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def throughput(settings: argparse.Namespace) -> dict[str, Table]:
    window = settings.steps if settings.full else settings.measure_steps
    contenders: dict[str, Call] = {
        "published listing": partial(published_rates, window),
        "published listing, 1 thread": partial(on_one_thread, published_rates, window),
    }
    if is_installed("stable_baselines3", "its PPO"):
        contenders[f"{SB3} PPO"] = partial(ppo_rates, window)
        contenders[f"{SB3} PPO, 1 thread"] = partial(on_one_thread, ppo_rates, window)
        if settings.subprocess_envs:
            contenders[f"{SB3} PPO, 1 thread, subprocesses"] = partial(on_one_thread, ppo_rates, window, True)
    for workers, compiled in ((0, False), (0, True), ("auto", False), ("auto", True)):
        name = f"grpolib, workers {workers}, {'compiled' if compiled else 'eager'}"
        contenders[name] = partial(grpolib_rates, window, workers, compiled)
    contenders["floor: physics on all cores, update alone"] = partial(floor_rates, window)
    raw = in_turns(contenders, settings.repeats)
    how = "Every run took all its steps" if settings.full else f"Rates from a window of {window:,} steps"
    note = (
        f"{how}, after one iteration of warm-up; median of {settings.repeats} turns. Total: these rates times "
        f"{settings.steps:,} environment steps and {settings.steps * 4 // 64:,} updates of 64 steps; spread: of the "
        "total over the turns. Not in it: starting, compiling, and evaluations of the last policy (10 episodes each "
        f"way every {EVALUATE_EVERY:,} steps). {SB3} also trains a critic."
    )
    return {"throughput": Table(note, totals(raw, settings.steps), raw)}


def totals(raw: dict[str, list[dict[str, float]]], steps: int) -> Rows:
    """A row per contender, the floor last."""
    rows = []
    for name, records in raw.items():
        rate, turns = medians(records), [r["step"] * steps + r["update"] * steps * 4 / 64 for r in records]
        rollouts, updating = rate["step"] * steps, rate["update"] * steps * 4 / 64
        row = {"contender": name, "µs per step": rate["step"] * 1e6, "ms per update": rate["update"] * 1e3}
        row |= {"rollouts [s]": rollouts, "updates [s]": updating, "total [s]": rollouts + updating}
        row |= {"spread": f"{(max(turns) - min(turns)) / median(turns):.0%}"}
        row |= {"starting [s]": rate["starting"], "compiling [s]": rate["compiling"]}
        rows.append({**row, "evaluations [s]": rate["evaluation"] * (steps // EVALUATE_EVERY + 1)})
    listing = min(row["total [s]"] for row in rows if row["contender"].startswith("published"))
    for row in rows:
        row["times as fast as the faster listing"] = listing / row["total [s]"]
        row["times the floor"] = row["total [s]"] / rows[-1]["total [s]"]
    return rows
