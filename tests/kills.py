"""Kill a run at random moments, let it go on, and compare every bit with the run that nobody killed.

    python tests/kills.py --kills 200 --folder runs/kills

Each run has thirty iterations and writes a checkpoint after each; it is killed once (SIGKILL), at a moment drawn from
its time since there is a run folder, and then goes on in a new process to its end. One line of `kills.jsonl` for each;
called again, it goes on where it stopped. The exit code is 1 where a bit differs.
"""

import argparse
import json
import random
import shutil
import time
from itertools import cycle
from pathlib import Path

from resume_runs import assert_same_run, checkpointed, process

ITERATIONS = 30
KINDS = ([("ppo", 0), ("critic_free", 0)] * 4) + [("grpo", 2), ("ppo", 2)]
"""Eight of ten without worker processes, which take seconds to start."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("runs/kills"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    table = arguments.folder / "kills.jsonl"
    done = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    finished("ppo", arguments.folder / "warm-up", 0)  # the next processes have their imports behind them
    for number, (kind, workers) in zip(range(arguments.kills), cycle(KINDS), strict=False):
        if number >= len(done):
            done.append(one_kill(number, kind, workers, arguments.folder))
            with table.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(f"{len(done):>4} {done[-1]}", flush=True)
    report(done)


def one_kill(number, kind, workers, folder):
    """Kill the run of that number once, let it go on, and say what became of it."""
    unbroken = folder / f"unbroken-{kind}-{workers}"
    seconds_file = folder / f"{unbroken.name}.seconds"
    if not seconds_file.exists():
        shutil.rmtree(unbroken, ignore_errors=True)
        seconds_file.write_text(str(finished(kind, unbroken, workers)))
    killed = folder / "killed"
    shutil.rmtree(killed, ignore_errors=True)
    moment = random.Random(number).uniform(0.0, float(seconds_file.read_text()))
    running = process(kind, killed, workers, ITERATIONS)
    wait_for(killed, running)
    running.join(moment)
    running.kill()
    running.join()
    reached = checkpointed(killed)
    finished(kind, killed, workers)
    try:
        assert_same_run(unbroken, killed)
    except AssertionError as difference:
        return {"kind": kind, "workers": workers, "iteration": reached, "same": False, "why": str(difference)[:500]}
    return {"kind": kind, "workers": workers, "iteration": reached, "same": True}


def finished(kind, folder, workers):
    """Let the run come to its end in a new process; the seconds that it took since there was a folder."""
    running = process(kind, folder, workers, ITERATIONS)
    wait_for(folder, running)
    start = time.monotonic()
    running.join()
    if running.exitcode != 0:
        raise SystemExit(f"the run in {folder} did not go on: see the error above")
    return time.monotonic() - start


def wait_for(folder, running):
    """Imports are behind a run that has a folder."""
    while running.is_alive() and not folder.exists():
        time.sleep(0.001)


def report(done):
    same = sum(kill["same"] for kill in done)
    in_training = sum(kill["iteration"] is not None and kill["iteration"] < ITERATIONS for kill in done)
    print(
        f"{same} of {len(done)} killed runs went on and ended with the bits of the unbroken run; {in_training} were "
        f"killed between their first checkpoint and their last"
    )
    raise SystemExit(same < len(done))


if __name__ == "__main__":
    main()
