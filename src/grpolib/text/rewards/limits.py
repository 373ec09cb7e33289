"""What a process may use, and the command that starts one within it."""

import json
import math
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

CHILDREN = Path(__file__).parent / "children"
ISOLATED = (sys.executable, "-I", "-S", "-B", "-X", "utf8")
"""The interpreter without environment variables, user or site packages, or the folder that it runs in."""

TRANSIENT_USERS = range(61184, 65520)
"""User ids that belong to nobody; systemd gives them to services while they run."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one process may use; the kernel holds it to that.

    Args:
        seconds: Wall-clock time, > 0, after which its whole process group is killed. Of processor time it has as much,
            rounded up.
        memory: Address space in bytes; None for no limit, where the system keeps none (macOS).
        file_size: Bytes that a file, or its output, may grow to.
        processes: Processes and threads that its user may have beside those there are: 0 starts none, None for no
            limit. The kernel counts all of a user's, so a number between is one of them all.
        open_files: File descriptors.
    """

    seconds: float = 10.0
    memory: int | None = 2**30
    file_size: int = 2**24
    processes: int | None = 0
    open_files: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"{self}: seconds must be > 0 and finite")
        if min(self.memory or 1, self.file_size + 1, (self.processes or 0) + 1, self.open_files) < 1:
            raise ValueError(f"{self}: limits are not negative; None stands for no limit of memory or processes")

    def resources(self) -> dict[str, int]:
        """By the names of the `resource` module."""
        limits = {
            "RLIMIT_CPU": math.ceil(self.seconds),
            "RLIMIT_AS": self.memory,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
        }
        return {name: value for name, value in limits.items() if value is not None}


def limited(command: tuple[str, ...], resources: dict[str, int], user: int | None) -> list[str]:
    """The command that takes on a user id and limits, then becomes `command`."""
    return [*ISOLATED, str(CHILDREN / "launch.py"), json.dumps({"user": user, "resources": resources}), *command]


def transient_user() -> int | None:
    """A user id for one process, where this process is root's: the kernel counts no processes of root's. Else None."""
    return secrets.choice(TRANSIENT_USERS) if hasattr(os, "geteuid") and os.geteuid() == 0 else None
