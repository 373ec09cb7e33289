"""Land the lunar lander without a critic: train, evaluate both ways, draw the curves.

    python examples/lunarlander.py                      # critic-free GRPO, two to three minutes on two cores
    python examples/lunarlander.py --recipe grpo        # GRPO as published: it learns, but does not land

Needs the extras box2d and plots. Everything is written to a new folder, `runs/...` unless `--out` names one.
"""

import argparse
import json
import time
from datetime import datetime
from functools import partial
from pathlib import Path

import gymnasium
import matplotlib.pyplot as plt
import numpy as np

from grpolib import EvaluateEvery, GRPOTrainer, mlp, recipes
from grpolib.callbacks import PrintEvaluations

ENV = "LunarLander-v3"
# A policy that hovers fills its episodes with steps that teach little: training cuts them, evaluation never does.
SHORT = partial(gymnasium.make, ENV, max_episode_steps=400)
RECIPES = {"critic-free": (recipes.critic_free, SHORT), "grpo": (lambda total_steps: recipes.grpo(), ENV)}


def draw_curves(run_folder: Path, title: str) -> Path:
    """Draw the six panels of a run from its CSV files."""
    metrics = np.genfromtxt(run_folder / "metrics.csv", delimiter=",", names=True, ndmin=1)
    evaluations = np.genfromtxt(run_folder / "evaluations.csv", delimiter=",", names=True, ndmin=1)
    kl, kl_title = (
        ("kl_reference", "KL to the reference")
        if "kl_reference" in metrics.dtype.names
        else ("kl_old_k3", "KL to the sampling policy")
    )
    panels = [
        ("return_mean", "training return (sampled)"),
        (None, "evaluation return, 10 held-out starts"),
        ("group_return_std", "spread of returns within a group"),
        (kl, f"{kl_title} [nats]"),
        ("entropy", "entropy [nats]"),
        ("clip_fraction", "clip fraction"),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), layout="constrained")
    for axis, (column, name) in zip(axes.flat, panels, strict=True):
        if column is None:
            for way in ("argmax", "sampled"):
                axis.plot(evaluations["num_steps"] / 1e6, evaluations[f"{way}_mean"], ".-", markersize=3, label=way)
            axis.legend(frameon=False)
        else:
            axis.plot(metrics["num_steps"] / 1e6, metrics[column])
        axis.set_title(name, fontsize=11)
        axis.set_xlabel("million environment steps")
        axis.locator_params(axis="x", nbins=5)
        axis.grid(alpha=0.3)
    for axis in axes.flat[:2]:
        axis.axhline(200, color="0.4", linestyle="--", linewidth=1)
        inside = axis.get_yaxis_transform()  # x in shares of the panel
        axis.text(0.02, 203, "solved", transform=inside, color="0.4", fontsize=9, va="bottom").set_in_layout(False)
    figure.suptitle(title)
    figure.savefig(run_folder / "curves.png", dpi=120)
    plt.close(figure)
    return run_folder / "curves.png"


def main() -> None:
    plt.switch_backend("Agg")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="critic-free", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the policy and the trainer, default: %(default)s")
    parser.add_argument("--total-steps", type=int, default=1_000_000, help="environment steps, default: %(default)s")
    parser.add_argument("--out", type=Path, help="run folder; must be new or empty")
    args = parser.parse_args()
    out = args.out or Path("runs") / f"lunarlander-{args.recipe}-{args.seed}-{datetime.now():%Y%m%d-%H%M%S}"

    start = time.perf_counter()
    policy = mlp(8, 64, 64, 4, seed=args.seed)
    recipe, env = RECIPES[args.recipe]
    trainer = GRPOTrainer(
        policy,
        env,
        recipe=recipe(args.total_steps),
        seed=args.seed,
        run_folder=out,
        workers="auto",
        compile="auto",
        callbacks=[PrintEvaluations(), EvaluateEvery(env=ENV)],
    )
    trainer.train(total_steps=args.total_steps)
    minutes = (time.perf_counter() - start) / 60

    report = trainer.evaluate(episodes=50, env=ENV)
    result = {"recipe": args.recipe, "seed": args.seed, "steps": trainer.num_steps, "iterations": trainer.iteration}
    result |= {"minutes": round(minutes, 2), **report.as_row()}
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    picture = draw_curves(
        out, f"{ENV}, {args.recipe}, seed {args.seed}: final return {report.argmax.mean:.0f} (argmax)"
    )
    print(
        f"\nThe 50 reported starts, after {trainer.num_steps:,} steps and {minutes:.1f} minutes of training:\n{report}"
    )
    print(f"\nresult.json, metrics.csv, evaluations.csv, best/, last/ and {picture.name} are in {out}")


if __name__ == "__main__":
    main()
