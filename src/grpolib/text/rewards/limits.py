"""What a process may use, and the command that starts one within it."""

import json
import math
import os
import secrets
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

CHILDREN = Path(__file__).parent / "children"
ISOLATED = (sys.executable, "-I", "-S", "-B", "-X", "utf8")
"""The interpreter without environment variables, user or site packages, or the folder that it runs in."""

TRANSIENT_USERS = range(61184, 65520)
"""User ids that belong to nobody; systemd gives them to services while they run."""

READ_EVERYTHING = 2
"""Number of the capability CAP_DAC_READ_SEARCH."""


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
        counts = (self.memory, self.file_size, self.processes, self.open_files)
        if any(count is not None and count < 0 for count in counts):
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
    """A user id for one process where this process is root's, of whose processes the kernel counts none; else None.

    None also where another user could not read the interpreter.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    readable = _may_read_everything() or all(map(_everyone_may_read, (sys.executable, os.__file__, __file__)))
    return secrets.choice(TRANSIENT_USERS) if readable else None


def _may_read_everything() -> bool:
    """Whether Linux lets this process pass on that right; containers often have none of it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    permitted = next((int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:")), 0)
    return bool(permitted & 1 << READ_EVERYTHING)


def _everyone_may_read(file: str) -> bool:
    path = Path(file).resolve()
    return bool(path.stat().st_mode & stat.S_IROTH) and all(p.stat().st_mode & stat.S_IXOTH for p in path.parents)
