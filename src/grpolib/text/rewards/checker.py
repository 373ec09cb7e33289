"""Completions that a program of the user's accepts: a proof checker, a compiler, a linter."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpolib.text.rewards.columns import column
from grpolib.text.rewards.limits import Limits
from grpolib.text.rewards.parallel import graded_in_threads
from grpolib.text.rewards.processes import run_limited
from grpolib.text.rewards.protocol import Scores

FILE = "{file}"


def _minute() -> Limits:
    return Limits(seconds=60.0, memory=None, processes=None, open_files=1024)


@dataclass(frozen=True)
class Checker:
    """1 where a command exits with 0 on a completion, else 0; also where it takes too long.

    The command is trusted, what it reads is not. It runs without a shell, in a new directory, on its standard input or
    on a file there; it inherits nothing of the environment, and its whole process group ends with it.

    Args:
        command: Program and arguments. "{file}" in them becomes the name of a file with the text; without it the
            text is the standard input.
        suffix: Of that file's name, such as ".lean".
        before: Column of texts to put before the completion: the theorem, without which a proof of anything else would
            do. No text: None. Or None for no such column.
        limits: What the command may use; by default a minute, and processes and memory as it likes.
        environment: All of its environment; None for a path to the system's programs.
        threads: Commands at a time; None for as many as there are cores.

    Raises:
        FileNotFoundError: There is no such program.

    >>> Checker(["grep", "-qx", "QED"], limits=Limits(processes=None))(["?", "?"], ["QED", "Trust me."])
    [1.0, 0.0]
    """

    command: Sequence[str]
    suffix: str = ""
    before: str | None = None
    limits: Limits = field(default_factory=_minute)
    environment: Mapping[str, str] | None = None
    threads: int | None = None
    _program: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise ValueError(f"{self}: command is a list of words, such as ['lean', '{FILE}']; no shell reads it")
        program = shutil.which(self.command[0])
        if program is None:
            raise FileNotFoundError(f"there is no program {self.command[0]!r}: install it, or give its whole path")
        object.__setattr__(self, "_program", program)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        before = [""] * len(completions) if self.before is None else column(self, columns, self.before)
        return graded_in_threads(self._grade, completions, before, self.threads)

    def _grade(self, completion: str, before: str) -> float:
        name, text = f"completion{self.suffix}", before + completion
        takes_file = any(FILE in word for word in self.command)
        finished = run_limited(
            (self._program, *(word.replace(FILE, name) for word in self.command[1:])),
            self.limits,
            stdin="" if takes_file else text,
            files={name: text} if takes_file else {},
            environment=self.environment,
        )
        return float(finished.exit_code == 0)
