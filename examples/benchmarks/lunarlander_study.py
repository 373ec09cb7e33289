"""The LunarLander study: a published experiment again, and what it left open. It goes on where it stopped.

    python examples/benchmarks/lunarlander_study.py list                    # the rows, and the seeds that are done
    python examples/benchmarks/lunarlander_study.py plan                    # the planned runs that are missing
    python examples/benchmarks/lunarlander_study.py run --planned --jobs 2  # run them, the most informative first
    python examples/benchmarks/lunarlander_study.py run --rows grpo ppo 'critic-free*' --seeds 0 1 2
    python examples/benchmarks/lunarlander_study.py report                  # tables and figures from the CSV files
    python examples/benchmarks/lunarlander_study.py video ROW SEED          # films of a run that is in --work

Each run is a process of its own on one core and takes a few minutes. A finished one is a line of docs/results/runs.csv
and is never run again; an interrupted one leaves no line. Policies, snapshots and logs go to `--work`.

Needs the extras box2d and plots, and scipy; for videos the extra video. Runs on Linux and macOS.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from study import rows
from study.jobs import run_all
from study.results import Results
from study.rows import FAMILIES, Pair
from study.running import TOTAL_STEPS, run

RESULTS = Path(__file__).parents[2] / "docs" / "results"
WORK = Path("runs") / "lunarlander-study"


def list_rows(args: argparse.Namespace) -> int:
    """Every row with a line about it and the seeds that are done."""
    finished = Results(args.results).finished()
    for family in FAMILIES:
        print(f"\n{family}")
        for row in rows.BY_NAME.values():
            if row.family == family:
                done = [seed for name, seed in sorted(finished) if name == row.name]
                print(f"  {row.name:34}{row.description:66}{_seeds(done)}")
    return 0


def plan(args: argparse.Namespace) -> int:
    """The planned runs in their order, and what is missing of them."""
    finished = Results(args.results).finished()
    pairs = rows.planned()
    missing = [pair for pair in pairs if pair not in finished]
    for row in rows.ROWS:
        todo = [seed for name, seed in missing if name == row.name]
        state = f"missing {_seeds(todo)}" if todo else "done"
        print(f"{row.name:26}planned {_seeds(row.planned):12}{state}")
    print(f"\n{len(pairs) - len(missing)} of {len(pairs)} planned runs are done")
    if missing:
        print(
            "next: " + ", ".join(f"{name} {seed}" for name, seed in missing[:8]) + (" ..." if len(missing) > 8 else "")
        )
    return 0


def run_rows(args: argparse.Namespace) -> int:
    """Run what is missing of the chosen rows and seeds."""
    results = Results(args.results)
    if args.total_steps != TOTAL_STEPS and args.results.resolve() == RESULTS.resolve():
        raise ValueError(
            f"{RESULTS} is for runs of {TOTAL_STEPS:,} steps: give shorter or longer ones --results FOLDER"
        )
    finished = results.finished()
    missing = [pair for pair in _chosen(args) if pair not in finished]
    print(f"{len(missing)} runs to do, {args.jobs} at a time")

    def command(pair: Pair) -> Sequence[str]:
        own = ["one", pair[0], str(pair[1]), "--total-steps", str(args.total_steps)]
        return [sys.executable, __file__, *own, "--work", str(args.work), "--results", str(args.results)]

    failed = run_all(missing, command, args.jobs, args.work, lambda pair: _outcome(results, pair))
    for name, seed in failed:
        print(f"failed: {name} seed {seed}", file=sys.stderr)
    return 1 if failed else 0


def run_one(args: argparse.Namespace) -> int:
    """One run in this process."""
    row = rows.BY_NAME[args.row]
    run(row, args.seed, total_steps=args.total_steps, results=Results(args.results), work=args.work)
    return 0


def report(args: argparse.Namespace) -> int:
    """Tables and figures."""
    from study.report import write_report

    for path in write_report(Results(args.results)):
        print(path)
    return 0


def video(args: argparse.Namespace) -> int:
    """Films of a finished run: the final policy, and one start through the snapshots."""
    from study.video import films

    run_folder = args.work / f"{args.row}-{args.seed}"
    for path in films(run_folder, args.out or run_folder):
        print(path)
    return 0


def _chosen(args: argparse.Namespace) -> Iterable[Pair]:
    if args.planned:
        return [pair for pair in rows.planned() if args.seeds is None or pair[1] in args.seeds]
    chosen = rows.named(args.rows)
    pairs = [(row.name, seed) for row in chosen for seed in (row.planned if args.seeds is None else args.seeds)]
    rows.check_seeds(chosen, [seed for _, seed in pairs], may_report=args.report)
    return pairs


def _outcome(results: Results, pair: Pair) -> str:
    for line in results.runs():
        if (line["row"], line["seed"]) == pair:
            return (
                f"done: argmax {line['argmax_mean']:.1f}, sampled {line['sampled_mean']:.1f}, "
                f"{line['seconds'] / 60:.1f} minutes"
            )
    return "left to another process"


def _seeds(seeds: Iterable[int]) -> str:
    return " ".join(map(str, seeds)) or "-"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files, default: docs/results")
    kept = argparse.ArgumentParser(add_help=False)
    kept.add_argument("--work", type=Path, default=WORK, help="folder of the runs, default: %(default)s")
    trained = argparse.ArgumentParser(add_help=False, parents=[kept])
    trained.add_argument("--total-steps", type=int, default=TOTAL_STEPS, help="default: %(default)s")
    single = argparse.ArgumentParser(add_help=False)
    single.add_argument("row", choices=list(rows.BY_NAME), metavar="ROW")
    single.add_argument("seed", type=int, metavar="SEED")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function in (("list", list_rows), ("plan", plan), ("report", report)):
        commands.add_parser(name, parents=[shared], help=function.__doc__).set_defaults(function=function)

    command = commands.add_parser("run", parents=[shared, trained], help=run_rows.__doc__)
    command.set_defaults(function=run_rows)
    choice = command.add_mutually_exclusive_group(required=True)
    choice.add_argument("--rows", nargs="+", metavar="ROW", help="names; 'all', and * for any letters")
    choice.add_argument("--planned", action="store_true", help="every planned run that is missing")
    command.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="default: those planned for each row")
    command.add_argument("--jobs", type=int, default=2, help="processes at a time, default: %(default)s")
    command.add_argument("--report", action="store_true", help="allow rows of the search on the reported seeds 0 to 4")

    command = commands.add_parser("one", parents=[shared, trained, single], help=run_one.__doc__)
    command.set_defaults(function=run_one)

    command = commands.add_parser("video", parents=[kept, single], help=video.__doc__)
    command.set_defaults(function=video)
    command.add_argument("--out", type=Path, help="folder of the films, default: the run's")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        return int(args.function(args))
    except ValueError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    sys.exit(main())
