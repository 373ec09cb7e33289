"""Several runs, each in a process of its own, a few at a time."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from study.rows import Pair

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 10


def run_all(
    pairs: Sequence[Pair], command: Callable[[Pair], Sequence[str]], jobs: int, logs: Path, tell: Callable[[Pair], str]
) -> list[Pair]:
    """Run every pair and print a line when each starts and ends; those that failed come back.

    A run that fails loses itself alone. When this process is interrupted or terminated, the running ones end too.

    Args:
        pairs: In this order.
        command: What runs a pair.
        jobs: Processes at a time, >= 1.
        logs: Folder of the runs' output.
        tell: What to print of a pair that has ended well.

    Raises:
        ValueError: jobs < 1.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}: run at least one at a time")
    waiting, failed = deque(enumerate(pairs, start=1)), []
    running: dict[Pair, tuple[int, subprocess.Popen[bytes]]] = {}
    logs.mkdir(parents=True, exist_ok=True)
    with _termination_is_an_exception():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    number, pair = waiting.popleft()
                    running[pair] = number, _started(command(pair), _log(logs, pair))
                    print(f"[{number}/{len(pairs)}] {pair[0]} seed {pair[1]} starts", flush=True)
                for pair, (number, process) in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[pair]
                    well = process.returncode == 0
                    failed += [] if well else [pair]
                    line = tell(pair) if well else f"failed ({process.returncode}): {_end_of(_log(logs, pair))}"
                    print(f"[{number}/{len(pairs)}] {pair[0]} seed {pair[1]} {line}", flush=True)
                time.sleep(POLL_SECONDS)
        finally:
            for _, process in running.values():
                _end(process)
    return failed


def _started(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    # A session of its own: Ctrl-C reaches this process alone, which ends the others.
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a run and whatever it has started: a compiler, say."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
            return


def _log(folder: Path, pair: Pair) -> Path:
    return folder / f"{pair[0]}-{pair[1]}.log"


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'no output'} (see {log})"


@contextmanager
def _termination_is_an_exception() -> Iterator[None]:
    def raise_exit(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
