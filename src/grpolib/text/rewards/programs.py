"""Python programs that nobody has read, run in processes of their own; or where the user says."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from grpolib.text.rewards.limits import ISOLATED, Limits
from grpolib.text.rewards.processes import Finished, run_limited

CANARY = """
import os
try:
    process = os.fork()
except OSError:
    print("no processes")
else:
    process or os._exit(0)
    os.wait()
    print("processes")
"""


@runtime_checkable
class RunProgram(Protocol):
    """Where a Python program runs: the seam for a real sandbox."""

    def __call__(self, program: str, stdin: str, /) -> str | None:
        """Run a program on this input and return its whole standard output.

        None where it took too long or did not exit with 0. Called from several threads at once.
        """
        ...


@dataclass(frozen=True)
class LimitedPython:
    """Runs a program on this machine in a process of its own, within limits. It is no sandbox: see docs/rewards.md.

    The first call checks with a program of ours that the system keeps the limits.

    Args:
        limits: What it may use.
        interpreter: Command of a Python whose arguments end before the file's name. Without `-S` a program can import
            what is installed beside it.

    Raises:
        RuntimeError: That first program did not run, or could start processes that the limits forbid.
    """

    limits: Limits = field(default_factory=Limits)
    interpreter: Sequence[str] = ISOLATED

    def __call__(self, program: str, stdin: str, /) -> str | None:
        """Its standard output, or None; see `RunProgram`."""
        _check(self.limits, tuple(self.interpreter))
        finished = _run(self.limits, tuple(self.interpreter), program, stdin)
        return finished.output if finished.exit_code == 0 else None


def _run(limits: Limits, interpreter: tuple[str, ...], program: str, stdin: str) -> Finished:
    return run_limited((*interpreter, "main.py"), limits, stdin=stdin, files={"main.py": program}, own_user=True)


@functools.cache
def _check(limits: Limits, interpreter: tuple[str, ...]) -> None:
    unhurried = replace(limits, seconds=60.0)  # a busy machine is no reason to give up
    canary = _run(unhurried, interpreter, CANARY, "")
    if canary.exit_code != 0:
        raise RuntimeError(
            f"{interpreter[0]} runs nothing within {limits} (exit code {canary.exit_code}): {canary.errors[-500:]!r}; "
            "raise the limits, name another interpreter, or give run=, a sandbox of your own"
        )
    if limits.processes == 0 and canary.output.strip() != "no processes":
        raise RuntimeError(
            "nothing keeps code from starting processes: the kernel counts none of root's, and no other user id could "
            "be lent to it (no right to change users, or an interpreter that root alone may read): run as another "
            "user, allow processes with Limits(processes=None), or give run=, a sandbox of your own"
        )
