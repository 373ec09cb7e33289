"""How cost grows with workers and ranks: measured with 1 and 2, predicted for 8 to 1,024.

    python examples/benchmarks/scaling.py --out scaling        # about 3 minutes on two cores

Writes scaling/scaling.json and scaling/scaling.png. The load grows with the workers: 4 groups of LunarLander-v3 for
each, played by a policy that is updated at the rate 0: it stays what it is, and its episodes as long as they are. The
model, whose constants are measured here:

    Ray       iteration = W x weights / rate + max over workers of its groups' times
                          + minibatches' overhead + all steps x (collecting + update)
    torchrun  iteration = max over ranks of its groups' times + minibatches' overhead + own steps x update
                          + all steps x (collecting + union) + messages x 2 (R - 1) x latency

`max` is the mean over draws from the measured times of groups, so it holds the wait for the longest episodes. The
weights leave one machine one after the other; the ring of an all-reduce has 2 (R - 1) steps. Overhead and update are
the line through the updates of 1 and 8 workers' steps in one process, whose minibatches are as many but 8 times as
large. `union` is what every rank does with the scalars of all: the estimator and the drawing of minibatches.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ray
import torch
from torch import distributed as dist

import grpolib as gl
from grpolib import GroupSampler, GRPOTrainer, MinibatchPlan, Ranks, RayWorkers, WorkerProcesses, mlp, recipes
from grpolib.ranks import Origins

ENV, GROUPS, MEMBERS, ROWS = "LunarLander-v3", 4, 16, 512
PREDICTED = [1, 2, 8, 32, 128, 512, 1024]


class Timed(Ranks):
    """Ranks that know how long they have waited for each other."""

    seconds, messages = 0.0, 0

    def _together(self, call: Callable[[], Any]) -> None:
        start = time.perf_counter()
        super()._together(call)
        self.seconds += time.perf_counter() - start
        self.messages += 1


def iterations(count: int, places: int, workers: Any = 0, ranks: Ranks | None = None) -> list[dict[str, Any]]:
    """Metrics of some iterations after the first, which starts the workers."""
    plan = MinibatchPlan(epochs=4, size=ROWS * places)
    trainer = GRPOTrainer(
        mlp(8, 64, 64, 4, seed=0),
        GroupSampler(ENV, MEMBERS, workers=workers),
        recipe=recipes.critic_free(),
        groups_per_step=GROUPS * places,
        plan=plan,
        optimizer=partial(torch.optim.Adam, lr=0.0),
        ranks=ranks,
    )
    rows, ranks = [], trainer.ranks
    for _ in range(count + 1):
        before = (ranks.seconds, ranks.messages, trainer.num_steps) if ranks else (0.0, 0, trainer.num_steps)
        row = dict(trainer.step(), steps=trainer.num_steps - before[2])
        if ranks:
            row |= {"communicating": ranks.seconds - before[0], "messages": ranks.messages - before[1]}
        rows.append(row)
    trainer.close()
    return rows[1:]


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    names = ["seconds_sampling", "seconds_updating", "steps", "communicating", "messages"]
    return {name: median(row[name] for row in rows) for name in names if name in rows[0]}


def measured_workers(count: int) -> dict[str, Any]:
    found = {"process": medians(iterations(count, 1)), "process 8": medians(iterations(count, 8))}
    for workers in (1, 2):
        found[f"pool {workers}"] = medians(iterations(count, workers, WorkerProcesses(workers)))
        found[f"ray {workers}"] = medians(iterations(count, workers, RayWorkers(workers)))
    return found


def measured_ranks(count: int) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            out = Path(folder) / f"{ranks}.json"
            subprocess.run([*command, __file__, "--rank-of", str(out), "--iterations", str(count)], check=True)
            found[f"ranks {ranks}"] = json.loads(out.read_text())
    return found


def run_as_rank(out: Path, count: int) -> None:
    torch.set_num_threads(1)
    with Timed.of_torchrun() as ranks:
        found = medians(iterations(count, ranks.size, ranks=ranks)) | {"message_seconds": message_seconds(ranks)}
        if ranks.rank == 0:
            out.write_text(json.dumps(found))


def message_seconds(ranks: Ranks) -> float:
    """Of one sum of the policy's gradients, by ranks that have nothing else to do: no wait for a slower one."""
    gradients = torch.zeros(sum(p.numel() for p in mlp(8, 64, 64, 4, seed=0).parameters()))
    times = []
    for _ in range(200 if ranks.size > 1 else 0):
        start = time.perf_counter()
        dist.all_reduce(gradients)
        times.append(time.perf_counter() - start)
    return median(times) if times else 0.0


def measured_constants() -> dict[str, Any]:
    """Times of single groups, bytes of an iteration, and rates of what goes through one place."""
    sampler = GroupSampler(ENV, MEMBERS)
    policy = gl.as_policy(mlp(8, 64, 64, 4, seed=0), sampler.action_space)
    times, batches = [], []
    for group in range(24):
        start = time.perf_counter()
        batches.append(sampler.sample(policy, 1, np.random.SeedSequence(0), first_group=group))
        times.append(time.perf_counter() - start)
    state = policy.state_dict()
    weights = pickle.dumps(state)
    start = time.perf_counter()
    for _ in range(20):
        ray.get(ray.put(state))
    broadcast = (time.perf_counter() - start) / 20
    packed = [pickle.dumps(batch) for batch in batches]
    start = time.perf_counter()
    whole = gl.batch.concatenate([pickle.loads(batch) for batch in packed])
    collecting = time.perf_counter() - start
    steps = sum(batch.num_steps for batch in batches)
    return {
        "group_seconds": times,
        "weight_bytes": len(weights),
        "bytes_per_step": sum(map(len, packed)) / steps,
        "weights_seconds": broadcast,
        "collecting_seconds_per_step": collecting / steps,
        "union_seconds_per_step": union_seconds(whole) / steps,
        "steps_per_group": steps / len(batches),
    }


def union_seconds(batch: gl.GroupBatch[Any]) -> float:
    """What a rank does with the scalars of all."""
    recipe = recipes.critic_free()
    union = replace(batch, inputs=Origins.of(0, batch.num_steps, batch.num_episodes), final_inputs=None)
    plan = MinibatchPlan(epochs=4, size=batch.num_steps // 12)
    start = time.perf_counter()
    for minibatch in union.minibatches(recipe.advantages(union), recipe.reduction, plan, torch.Generator()):
        minibatch.inputs.steps[minibatch.inputs.step_ranks == 0]
    return time.perf_counter() - start


def predicted(found: dict[str, Any]) -> dict[str, Any]:
    constants, one, eight = found["constants"], found["process"], found["process 8"]
    update = (eight["seconds_updating"] - one["seconds_updating"]) / (eight["steps"] - one["steps"])
    overhead = one["seconds_updating"] - update * one["steps"]
    two = found["ranks 2"]
    latency = two["message_seconds"] / 2
    steps = GROUPS * constants["steps_per_group"]
    draws = np.random.default_rng(0)
    curves: dict[str, Any] = {"workers": PREDICTED, "ray": [], "ranks": []}
    for places in PREDICTED:
        own = draws.choice(constants["group_seconds"], (200, places, GROUPS)).sum(2).max(1).mean()
        everything = steps * places
        collecting = constants["collecting_seconds_per_step"] * everything
        parts = {"sampling": own, "weights": constants["weights_seconds"] * places, "collecting": collecting}
        parts["update"] = overhead + update * everything
        curves["ray"].append({"steps_per_second": everything / sum(parts.values()), **parts})
        shared = {"sampling": own, "update": overhead + update * steps}
        shared["union"] = collecting + constants["union_seconds_per_step"] * everything if places > 1 else 0.0
        shared["messages"] = two["messages"] * 2 * (places - 1) * latency
        curves["ranks"].append({"steps_per_second": everything / sum(shared.values()), **shared})
    return curves


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves = found["predicted"]
    figure, axes = plt.subplots(figsize=(6.5, 4))
    for name, label in (("ray", "Ray, one learner"), ("ranks", "torchrun")):
        (line,) = axes.plot(
            curves["workers"], [row["steps_per_second"] for row in curves[name]], label=f"{label}, model"
        )
        points = [(places, found[f"{name} {places}"]) for places in (1, 2)]
        speeds = [row["steps"] / (row["seconds_sampling"] + row["seconds_updating"]) for _, row in points]
        axes.plot([1, 2], speeds, "o", color=line.get_color(), label=f"{label}, measured")
    axes.set(xscale="log", yscale="log", xlabel="workers or ranks", ylabel="environment steps per second")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scaling"))
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        run_as_rank(args.rank_of, args.iterations)
        return
    torch.set_num_threads(1)
    # As the pool's: Ray's own 15 would measure who else is on the machine. The name is Ray's, lower case and all.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    found = measured_workers(args.iterations)
    found["constants"] = measured_constants()
    ray.shutdown()
    found |= measured_ranks(args.iterations)
    found["predicted"] = predicted(found)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scaling.json").write_text(json.dumps(found, indent=2))
    draw(found, args.out / "scaling.png")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
