"""The critic-free recipe on other environments, beside PPO at the same steps, nothing tuned. Goes on where it stopped.

    python examples/benchmarks/environments_study.py                                 # all, over an hour on one core
    python examples/benchmarks/environments_study.py --environments CartPole-v1 --seeds 0 --jobs 1

Each run is a process of its own on one core. A finished one is a line of docs/results/environments.csv and is never run
again; `lunarlander_study.py report` makes the table. Needs the extras box2d and plots. Runs on Linux and macOS.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from study import environments
from study.environments import BY_NAME, ROWS, SEEDS, STEPS
from study.jobs import run_all
from study.rows import Pair

RESULTS = Path(__file__).parents[2] / "docs" / "results"
WORK = Path("runs") / "environments-study"


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if args.one is not None:
        total_steps = args.total_steps or STEPS[BY_NAME[args.one].env]
        environments.run(BY_NAME[args.one], args.seeds[0], total_steps=total_steps, results=args.results)
        return 0
    if args.total_steps is not None and args.results.resolve() == RESULTS.resolve():
        print(f"{RESULTS} is for whole runs: give --total-steps its own --results FOLDER", file=sys.stderr)
        return 2
    done = {(line["row"], line["seed"]) for line in environments.finished(args.results)}
    wanted = [(row.name, seed) for seed in args.seeds for row in ROWS if row.env in args.environments]
    missing = [pair for pair in wanted if pair not in done]
    print(f"{len(missing)} runs to do, {args.jobs} at a time")

    def command(pair: Pair) -> Sequence[str]:
        steps = [] if args.total_steps is None else ["--total-steps", str(args.total_steps)]
        return [
            *(sys.executable, __file__, "--one", pair[0], "--seeds", str(pair[1])),
            *("--results", str(args.results), *steps),
        ]

    return 1 if run_all(missing, command, args.jobs, args.work, lambda pair: _outcome(args.results, pair)) else 0


def _outcome(results: Path, pair: Pair) -> str:
    (line,) = [line for line in environments.finished(results) if (line["row"], line["seed"]) == pair]
    minutes = line["seconds"] / 60
    return f"done: argmax {line['argmax_mean']:.1f}, sampled {line['sampled_mean']:.1f}, {minutes:.1f} minutes"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="ENV")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, default: %(default)s")
    parser.add_argument("--total-steps", type=int, help="default: the environment's own")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the file, default: docs/results")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the logs, default: %(default)s")
    parser.add_argument("--one", choices=list(BY_NAME), metavar="NAME", help="this one, in this process")
    return parser


if __name__ == "__main__":
    sys.exit(main())
