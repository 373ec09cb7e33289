"""Verdicts from a process that can be killed: for scans and parsers which a hostile text can keep busy for ever.

Python cannot stop a regular expression, nor SymPy or SQLite, from another thread; and `signal.alarm` works in the main
thread alone. So the judge is a child, and time is kept here.
"""

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from grpolib.text.rewards.directories import private_directory
from grpolib.text.rewards.limits import CHILDREN, ISOLATED, limited, transient_user
from grpolib.text.rewards.processes import kill_group, pipes, start

STARTING = 120.0
"""Seconds that a judge may take to import what it needs."""

RESOURCES = {"RLIMIT_AS": 2**32, "RLIMIT_FSIZE": 2**16, "RLIMIT_NPROC": 0, "RLIMIT_CORE": 0}
ENVIRONMENT = {"PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Judge:
    """A script of `children/` and what its `make_judge` is given.

    Args:
        script: Its file's name.
        seconds: Wall-clock time for one verdict, > 0 and finite.
        settings: JSON.
        imports_packages: Whether it needs what is installed beside the interpreter.
    """

    script: str
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    imports_packages: bool = False

    def __call__(self, questions: Iterable[Mapping[str, Any] | None]) -> list[Any]:
        """A verdict for each question; None for None, and where the judge raised, died or took too long.

        Raises:
            RuntimeError: The judge did not even start.
        """
        with _Bench(self) as bench:
            return [None if question is None else bench.ask(question) for question in questions]

    def command(self) -> tuple[str, ...]:
        """What runs it."""
        interpreter = [option for option in ISOLATED if not (self.imports_packages and option == "-S")]
        return (*interpreter, str(CHILDREN / "serve.py"), str(CHILDREN / self.script), json.dumps(dict(self.settings)))


class _Bench:
    """Where a judge sits: called at the first question, and anew after one that it did not survive."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._seat = ExitStack()
        self._pipes: tuple[IO[bytes], IO[bytes]] | None = None

    def __enter__(self) -> "_Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipes = None
        self._seat.close()

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The verdict, or None."""
        if self._pipes is None:
            self._pipes = self._seat.enter_context(_seated(self._judge))
        questions, answers = self._pipes
        try:
            write_line(questions, json.dumps(question).encode())
            return json.loads(read_line(answers, self._judge.seconds))
        except (TimeoutError, EOFError, BrokenPipeError, ValueError):
            self.__exit__()
            return None


@contextmanager
def _seated(judge: Judge) -> Generator[tuple[IO[bytes], IO[bytes]], None, None]:
    """Pipes to a judge that is ready, gone with all its process group afterwards."""
    user = transient_user()
    command = limited(judge.command(), RESOURCES, user)
    with (
        private_directory(user) as directory,
        tempfile.TemporaryFile() as errors,
        start(command, directory, stdout=subprocess.PIPE, stderr=errors, environment=ENVIRONMENT) as process,
    ):
        try:
            questions, answers = pipes(process)
            _wait_until_ready(judge, answers, errors)
            yield questions, answers
        finally:
            kill_group(process)


def _wait_until_ready(judge: Judge, answers: IO[bytes], errors: IO[bytes]) -> None:
    try:
        read_line(answers, STARTING)
    except (TimeoutError, EOFError) as error:
        errors.seek(0)
        said = errors.read()[-500:].decode("utf-8", "replace")
        raise RuntimeError(f"the judge {judge.script} did not start: {said!r}") from error


def write_line(pipe: IO[bytes], line: bytes) -> None:
    """Write all of a line to an unbuffered pipe."""
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[pipe.write(rest) :]


def read_line(pipe: IO[bytes], seconds: float) -> bytes:
    """The next line.

    Raises:
        TimeoutError: It took longer.
        EOFError: The other side is gone.
    """
    deadline, line = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"no answer within {seconds} s")
            part = os.read(pipe.fileno(), 2**16)
            if not part:
                raise EOFError("the other side is gone")
            line += part
    return line
