"""Training that is disturbed again and again, beside the same training left alone: equal bits, and nothing grows.

    python examples/benchmarks/soak.py --out runs/soak      # about an hour on two cores
    python examples/benchmarks/soak.py --out runs/soak --iterations 60 --every 15

Both train on LunarLander-v3, evaluate and write checkpoints; one has two workers, the other none. About every minute a
worker of the first is killed, or the whole of it is killed or told to end, and it goes on from its last checkpoint.
Every twenty iterations both write down what they hold. Prints a table, and exits with 1 where a bit differs, a process
outlives its run, or shared memory stays behind. Needs Linux and the extra box2d.
"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
from speed.memory import resources

from grpolib import Callback, CheckpointEvery, EvaluateEvery, GRPOTrainer, mlp, recipes

SHORT = partial(gymnasium.make, "LunarLander-v3", max_episode_steps=400)
TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}
TRAINER = "resident, trainer [MB]"
DISTURBANCES = ("a worker is killed", "the run is killed", "the run is told to end")


class WriteResources(Callback):
    """A line every twenty iterations."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_iteration_end(self, trainer: Any, metrics: Any) -> None:
        if trainer.iteration % 20 == 0:
            with self.file.open("a") as file:
                file.write(json.dumps({"iteration": trainer.iteration, "pid": os.getpid(), **resources()}) + "\n")


def train(folder: Path, workers: int, iterations: int) -> None:
    """Start the run, or go on with it, up to an iteration."""
    policy = mlp(8, 64, 64, 4, seed=0)
    callbacks = [
        CheckpointEvery(5, keep_last=2),
        EvaluateEvery(steps=50_000, env="LunarLander-v3"),
        WriteResources(folder.with_suffix(".jsonl")),
    ]
    pieces: dict[str, Any] = {"recipe": recipes.critic_free(), "workers": workers, "callbacks": callbacks}
    if (folder / "checkpoints" / "latest").exists():
        trainer = GRPOTrainer.resume(folder, policy, SHORT, **pieces)
    else:
        if folder.exists():  # it was ended before its first checkpoint
            folder.rename(folder.with_name(f"{folder.name}-{time.time_ns()}"))
        trainer = GRPOTrainer(policy, SHORT, run_folder=folder, seed=0, **pieces)
    if trainer.iteration < iterations:
        trainer.train(iterations=iterations - trainer.iteration)
    else:  # it was ended after its last iteration: what is written at the end may be missing
        trainer.train(total_steps=trainer.num_steps)
    trainer.close()


def started(folder: Path, workers: int, iterations: int) -> subprocess.Popen[bytes]:
    """The training in a process, which leads a group of its own."""
    command = [sys.executable, __file__, "--run", str(folder), "--workers", str(workers)]
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--iterations", str(iterations)], stdout=log, stderr=log, start_new_session=True
        )


def group_of(leader: int) -> dict[int, str]:
    """The living processes of a group, and their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found[int(process.name)] = command
    return found


def disturb(running: subprocess.Popen[bytes], draw: random.Random) -> str:
    """Do one of the three things, and wait for the end of the run."""
    workers = [pid for pid, command in group_of(running.pid).items() if "spawn_main" in command]
    what = draw.choice(DISTURBANCES if workers else DISTURBANCES[1:])
    if what == "a worker is killed":
        os.kill(draw.choice(workers), signal.SIGKILL)
    else:
        running.send_signal(signal.SIGKILL if what == "the run is killed" else signal.SIGTERM)
    running.wait(timeout=120)
    return what


def is_gone(leader: int) -> bool:
    """Whether nothing of a group lives on, five seconds after its end."""
    deadline = time.monotonic() + 5
    while group_of(leader) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not group_of(leader)


def run_disturbed(folder: Path, iterations: int, every: float) -> tuple[Counter[str], int]:
    """Disturb the run until it has come to its end: how often, and how many runs left a process behind."""
    draw, done, left = random.Random(0), Counter[str](), 0
    while True:
        running = started(folder, 2, iterations)
        try:
            if running.wait(timeout=draw.uniform(0.5, 1.5) * every) != 0:
                raise SystemExit(f"the run failed by itself: see {folder.with_suffix('.log')}")
        except subprocess.TimeoutExpired:
            done[disturb(running, draw)] += 1
            print(f"{sum(done.values())}: {dict(done)}", flush=True)
        left += not is_gone(running.pid)
        if running.returncode == 0:
            return done, left


def rows_of(file: Path) -> list[dict[str, str]]:
    """Without what time has to do with."""
    with file.open(newline="") as rows:
        return [{name: value for name, value in row.items() if name not in TIMINGS} for row in csv.DictReader(rows)]


def same(one: Path, other: Path) -> bool:
    """Whether two run folders have the same weights and rows."""
    weights = [(folder / "last" / "policy.safetensors").read_bytes() for folder in (one, other)]
    tables = ("metrics.csv", "evaluations.csv")
    return weights[0] == weights[1] and all(rows_of(one / name) == rows_of(other / name) for name in tables)


def halves(file: Path, name: str) -> str:
    """The largest of a resource while the first and the second half of the iterations ran."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    middle = lines[-1]["iteration"] / 2
    early, late = (max(line[name] for line in lines if (line["iteration"] > middle) == is_late) for is_late in (0, 1))
    return f"{early:.0f}, {late:.0f}"


def growth(file: Path) -> float:
    """Megabytes that the trainer's process takes more, from the end of the first quarter to the end."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return float(lines[-1][TRAINER] - lines[len(lines) // 4][TRAINER])


def growth_of_environments(episodes: int) -> float:
    """Megabytes that so many episodes take more without any of this library, from 500 played after 500."""
    environment = SHORT()
    environment.action_space.seed(0)
    held = []
    for episode in range(1001):
        if episode in (500, 1000):
            held.append(resources()[TRAINER])
        environment.reset(seed=episode)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = environment.step(environment.action_space.sample())
            ended = terminated or truncated
    return float(held[1] - held[0]) / 500 * episodes


def episodes_of(folder: Path) -> int:
    """Of the last three quarters of a run: in training, and in evaluations of ten both ways."""
    return len(rows_of(folder / "metrics.csv")) * 3 // 4 * 32 + len(rows_of(folder / "evaluations.csv")) * 3 // 4 * 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="between disturbances, on average")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        torch.set_num_threads(1)
        train(args.run, args.workers, args.iterations)
        return
    args.out.mkdir(parents=True)
    start, before = time.monotonic(), set(os.listdir("/dev/shm"))
    alone = started(args.out / "alone", 0, args.iterations)
    done, left = run_disturbed(args.out / "disturbed", args.iterations, args.every)
    minutes = (time.monotonic() - start) / 60
    if alone.wait() != 0:
        raise SystemExit(f"the run that was left alone failed: see {args.out / 'alone.log'}")
    print("| largest in the first and the second half | left alone | disturbed |\n|---|---|---|")
    for name in (TRAINER, "resident, children [MB]", "child processes", "open files", "/dev/shm entries"):
        columns = [halves(args.out / f"{run}.jsonl", name) for run in ("alone", "disturbed")]
        print(f"| {name} | {columns[0]} | {columns[1]} |")
    grown, episodes = growth(args.out / "alone.jsonl"), episodes_of(args.out / "alone")
    own = growth_of_environments(episodes)
    print(f"left alone, {grown:.0f} MB in the last {episodes} episodes; as many without this library take {own:.0f} MB")
    equal, memory = same(args.out / "alone", args.out / "disturbed"), set(os.listdir("/dev/shm")) - before
    print(f"{args.iterations} iterations in {minutes:.0f} minutes, disturbed {sum(done.values())} times: {dict(done)}")
    print(f"same bits: {equal}; runs that left a process: {left}; left in shared memory: {sorted(memory)}")
    raise SystemExit(not equal or left > 0 or len(memory) > 0)


if __name__ == "__main__":
    main()
