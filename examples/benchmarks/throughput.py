"""How fast: the library beside its peers, each in a process of its own, taken in turns.

    python examples/benchmarks/throughput.py --out FOLDER                            # all parts: about an hour
    python examples/benchmarks/throughput.py --out FOLDER --parts throughput --full  # really all the steps: hours
    python examples/benchmarks/throughput.py --report FOLDER                         # its tables into the page

Parts: throughput (the published listing, Stable-Baselines3, the library, the floor), scaling (group size, episode
length), memory (bytes per step, growth over 300 iterations), recursions (advantages of up to five times --steps
steps), solve (seconds until LunarLander is solved). Each leaves FOLDER/<part>.json; throughput also a picture.
Needs Linux and `pip install -e ".[box2d,plots,bench]"`; what needs a package that is not there is left out.
"""

import argparse
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import re
import resource
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import torch
from _published import PlainGRPO
from torch import Tensor, nn

import grpolib as gl
import grpolib.functional as F  # noqa: N812
from grpolib import GRPOTrainer, TimestepLeaveOneOut, mlp, recipes
from grpolib.evaluation import CHOOSING_SEEDS
from grpolib.metrics import MetricMeans
from grpolib.sampling.processes import available_cores
from grpolib.sampling.rollout import one_torch_thread
from grpolib.updates import Update

LANDER, SOLVED, EVALUATE_EVERY = "LunarLander-v3", 200, 50_000
SB3, SB3_ROLLOUT = "Stable-Baselines3", 16 * 1024
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"

Rows: TypeAlias = list[dict[str, Any]]
Call: TypeAlias = Callable[[], Any]


class Table(NamedTuple):
    """Rows with equal keys, which are the heads of the columns; the note says how they came about."""

    note: str
    rows: Rows
    raw: Any = None


# Running contenders.


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def is_installed(package: str, what: str) -> bool:
    """Whether a package is there; if not, one line says what is left out."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        say(f'{package} is not installed, so {what} is left out: pip install -e ".[box2d,plots,bench]"')
    return found


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a new interpreter: with threads, caches and peak memory of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)


def in_turns(contenders: dict[str, Call], repeats: int) -> dict[str, list[Any]]:
    """Every contender's results; when the machine slows down for a while, it does so for all."""
    results: dict[str, list[Any]] = {name: [] for name in contenders}
    for repeat in range(1, repeats + 1):
        for name, measure in contenders.items():
            seconds = seconds_of(lambda: results[name].append(in_fresh_process(measure)))  # noqa: B023  called at once
            say(f"  {name}, {repeat} of {repeats}: {seconds:.0f} s")
    return results


def seconds_of(function: Call) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def medians(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(record[name] for record in records) for name in records[0]}


# Part throughput: seconds per environment step and per update.


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


# Part scaling: group size and episode length.


class FixedLength(gymnasium.Env[Any, Any]):
    """Episodes of one length in which nothing is computed: what is left is the sampler's own work."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, length: int) -> None:
        self.length, self.time, self.observation = length, 0, np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self.observation, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation, float(action), self.time == self.length, False, {}


def sampling_speed(source: Any, group_size: int, length: int, steps: int) -> dict[str, float]:
    sampler, batches = gl.GroupSampler(source, group_size), []
    policy = gl.as_policy(mlp(8, 64, 64, 4), sampler.action_space)
    num_groups = max(1, steps // (group_size * length))
    sampler.sample(policy, 1, np.random.SeedSequence(0))
    seconds = seconds_of(lambda: batches.append(sampler.sample(policy, num_groups, np.random.SeedSequence(1))))
    batch, speed = batches[0], {}
    with one_torch_thread():
        for estimator in (gl.GroupZScore(), TimestepLeaveOneOut()):
            turns = [seconds_of(partial(estimator, batch)) for _ in range(5)]
            speed[f"{type(estimator).__name__} [ns/step]"] = median(turns) / batch.num_steps * 1e9
    mean_length = batch.num_steps / batch.num_episodes
    return {"steps": batch.num_steps, "mean length": mean_length, "steps/s": batch.num_steps / seconds, **speed}


def scaling(settings: argparse.Namespace) -> dict[str, Table]:
    cases: list[tuple[str, int, int]] = [("fixed length", size, 256) for size in (4, 16, 64, 256)]
    cases += [("fixed length", 16, length) for length in (64, 1024, 4096)]
    cases += [(LANDER, size, 100) for size in (4, 16, 64, 256)]
    contenders: dict[str, Call] = {}
    for name, size, length in cases:
        source = LANDER if name == LANDER else partial(FixedLength, length)
        contenders[f"{name} {size} {length}"] = partial(sampling_speed, source, size, length, settings.measure_steps)
    raw = in_turns(contenders, settings.repeats)
    records = zip(cases, raw.values(), strict=True)
    rows = [{"environment": name, "group size": size, **medians(turns)} for (name, size, _), turns in records]
    note = (
        f"In one process, about {settings.measure_steps:,} steps of a policy as it starts, at least one group; median "
        f"of {settings.repeats} turns. In the environment of fixed length nothing is computed."
    )
    return {"scaling": Table(note, rows, raw)}


# Part memory: bytes per step, and growth over a long run.


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
    sizes = [max(1, settings.steps // (16 * 250) // part) for part in (20, 10, 5, 2)]
    peaks = [in_fresh_process(peak_of_iteration, size) for size in sizes]
    steps, peak = [record["steps"] for record in peaks], [record["peak"] for record in peaks]
    slope = float(np.polyfit(steps, peak, 1)[0]) if len(set(steps)) > 1 else math.nan
    own = peaks[-1]["batch"] / steps[-1]
    rows = [{"steps": r["steps"], "batch [MB]": r["batch"] / 1e6, "peak [MB]": r["peak"] / 1e6} for r in peaks]
    note = (
        "Peak resident memory of a process that samples one batch and learns from it. Slope: "
        f"{slope:.0f} bytes per step, {slope / own:.1f} times the batch's own {own:.0f}."
    )
    iterations = min(300, max(3, settings.steps // 1000))
    growth = in_fresh_process(resources_over_time, iterations)
    over_time = f"{iterations} iterations of CartPole-v1 with 2 workers; /dev/shm is the whole machine's."
    return {"memory": Table(note, rows, peaks), "resources": Table(over_time, growth)}


# Part recursions: flat and ragged, against padded, flagged and looped.


def ragged(steps: int) -> dict[str, Tensor]:
    """Random steps of episodes of 70 to 1,000 steps, of which the last one is cut to fit."""
    lengths = np.random.default_rng(0).integers(70, 1001, size=steps // 70 + 1)
    lengths = lengths[: np.searchsorted(lengths.cumsum(), steps) + 1]
    lengths[-1] -= lengths.sum() - steps
    rng = torch.Generator().manual_seed(0)
    rewards, values, final_values = (torch.randn(n, generator=rng) for n in (steps, steps, len(lengths)))
    columns = {"rewards": rewards, "values": values, "final_values": final_values}
    return {**columns, "lengths": torch.from_numpy(lengths), "terminated": final_values > 0}


def torchrl_calls(data: dict[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Its recursions on [episodes, longest, 1], padded beforehand, and on [1, steps, 1] with flags; flat results."""
    from torchrl.objectives.value import functional as peer

    lengths, lasts = data["lengths"], data["lengths"].cumsum(0) - 1
    done, terminated = (torch.zeros_like(data["rewards"], dtype=torch.bool) for _ in range(2))
    done[lasts], terminated[lasts] = True, data["terminated"]
    next_values = data["values"].roll(-1)
    next_values[lasts] = data["final_values"]
    flat = (data["values"], next_values, data["rewards"], done, terminated)
    rows = torch.arange(int(lengths.max())) < lengths[:, None]
    padded = [column.new_zeros(rows.shape).masked_scatter(rows, column)[..., None] for column in flat]
    flagged = [column[None, :, None] for column in flat]
    return {
        "torchrl vec, padded": lambda: peer.vec_generalized_advantage_estimate(0.99, 0.95, *padded)[0][..., 0][rows],
        "torchrl vec, flags": lambda: peer.vec_generalized_advantage_estimate(0.99, 0.95, *flagged)[0].flatten(),
        "torchrl loop, padded": lambda: peer.generalized_advantage_estimate(0.99, 0.95, *padded)[0][..., 0][rows],
    }


def sb3_call(data: dict[str, Tensor]) -> Call:
    """The loop of a rollout buffer over as many steps of 16 environments."""
    from stable_baselines3.common.buffers import RolloutBuffer

    rows, box = len(data["rewards"]) // 16, gymnasium.spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(rows, box, gymnasium.spaces.Discrete(4), "cpu", gae_lambda=0.95, gamma=0.99, n_envs=16)
    buffer.rewards, buffer.values = (data[name][: rows * 16].view(rows, 16).numpy() for name in ("rewards", "values"))
    buffer.episode_starts = (np.random.default_rng(0).random((rows, 16)) < 1 / 535).astype(np.float32)
    return lambda: buffer.compute_returns_and_advantage(torch.zeros(16), np.zeros(16, dtype=bool))


def recursion_seconds(steps: int, peers: Sequence[str]) -> dict[str, float]:
    data = ragged(steps)
    calls: dict[str, Call] = {
        "reward to go": partial(F.discounted_returns, data["rewards"], data["lengths"], discount=0.99),
        "GAE": partial(F.generalized_advantages, **data, discount=0.99, gae_lambda=0.95),
    }
    others = torchrl_calls(data) if "torchrl" in peers else {}
    differs = max([float((call() - calls["GAE"]()).abs().max()) for call in others.values()], default=math.nan)
    calls |= others
    if "stable_baselines3" in peers:
        calls[f"{SB3} loop"] = sb3_call(data)
    for call in calls.values():
        call()
    turns = [{name: seconds_of(call) for name, call in calls.items()} for _ in range(3)]
    return {**medians(turns), "torchrl differs by": differs}


def recursions(settings: argparse.Namespace) -> dict[str, Table]:
    peers = [name for name in ("torchrl", "stable_baselines3") if is_installed(name, "its recursion")]
    rows, raw = [], {}
    for steps in [size for size in (10**4, 10**5, 10**6, 10**7) if size <= 5 * settings.steps]:
        for threads, where in (("1", (on_one_thread,)), ("default", ())):
            raw[f"{steps}, {threads}"] = seconds = in_fresh_process(*where, recursion_seconds, steps, peers)
            say(f"  {steps:,} steps, threads {threads}: GAE {seconds['GAE']:.2g} s")
            cells = {f"{name} [ms]": value * 1e3 for name, value in seconds.items() if name != "torchrl differs by"}
            best = min([cell for name, cell in cells.items() if name[:5] in ("torch", SB3[:5])], default=math.nan)
            rows.append({"steps": steps, "threads": threads, **cells, "fastest peer / GAE": best / cells["GAE [ms]"]})
    note = "Episodes of 70 to 1,000 steps, median of 3 turns. Reward to go and GAE are flat in and flat out."
    if "torchrl" in peers:
        differs = max(record["torchrl differs by"] for record in raw.values())
        note += " torchrl: padding is not counted, taking the steps out of it is; its advantages of standard normal "
        note += f"rewards and values differ from the library's by at most {differs:.0e}."
    if "stable_baselines3" in peers:
        note += f" {SB3}: a buffer of 16 environments, whatever their episodes."
    return {"recursions": Table(note, rows, raw)}


# Part solve: seconds of training until an argmax evaluation reaches 200.


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
    trainer = GRPOTrainer(policy, LANDER, recipe=recipes.critic_free(), seed=seed, callbacks=[judge], **fast)
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


# Writing it down.


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


PARTS = {"throughput": throughput, "scaling": scaling, "memory": memory, "recursions": recursions, "solve": solve}


def run_part(part: str, settings: argparse.Namespace) -> None:
    """Measure a part, write its file and print its tables."""
    file = settings.out / f"{part}.json"
    if file.exists():
        raise FileExistsError(f"{file} is there from an earlier run: nothing is overwritten, give another --out")
    say(f"{part} ...")
    where = machine()
    tables = {name: table._replace(note=f"{table.note} {where}.") for name, table in PARTS[part](settings).items()}
    content = {name: table._asdict() for name, table in tables.items()}
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(*map(markdown, tables.values()), sep="\n")
    if part == "throughput":
        draw(tables[part], settings.out / "throughput.png")


def report(folder: Path) -> None:
    """Put the tables of a folder between their marks in the page, and the picture beside it."""
    text = PAGE.read_text()
    for file in sorted(folder.glob("*.json")):
        for name, content in json.loads(file.read_text()).items():
            table = Table(**content)
            before, mark, rest = text.partition(f"<!-- table {name} -->\n")
            if not mark:
                raise ValueError(f"{PAGE} has no line <!-- table {name} -->, behind which the table would go")
            text = before + mark + f"\n{markdown(table)}\n<!-- end -->" + rest.partition("<!-- end -->")[2]
            if name == "throughput":
                draw(table, PAGE.parent / "images" / "throughput.png")
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000_000, help="environment steps of a run, default: %(default)s")
    parser.add_argument("--measure-steps", type=int, default=60_000, help="of a window, default: %(default)s")
    parser.add_argument("--full", action="store_true", help="throughput: run all the steps instead of a window")
    parser.add_argument("--repeats", type=int, default=3, help="turns, of which the median counts: %(default)s")
    parser.add_argument("--subprocess-envs", action="store_true", help="Stable-Baselines3 with SubprocVecEnv, too")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="folder for the results")
    where.add_argument("--report", type=Path, metavar="FOLDER", help="fill docs/performance.md from this folder")
    settings = parser.parse_args()
    if settings.report:
        report(settings.report)
        return
    settings.out.mkdir(parents=True, exist_ok=True)
    for part in settings.parts:
        if part in ("memory", "recursions") or is_installed("Box2D", part):
            run_part(part, settings)


if __name__ == "__main__":
    main()
