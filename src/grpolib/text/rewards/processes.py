"""One process within limits: started in a group of its own, waited for, and killed with its group."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grpolib.text.rewards.directories import private_directory
from grpolib.text.rewards.limits import Limits, limited, transient_user


@dataclass(frozen=True)
class Finished:
    """How a process ended: its exit code, negative for a signal, None where its time was over; and what it wrote."""

    exit_code: int | None
    output: str
    errors: str


def run_limited(
    command: tuple[str, ...],
    limits: Limits,
    *,
    stdin: str = "",
    files: Mapping[str, str] | None = None,
    own_user: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command to its end, or to the end of its time.

    It starts in a new directory, removed afterwards, with no descriptors but the three of standard input and output,
    and none of this program's environment. Its output goes to files, which the limit on files bounds.

    Args:
        command: The program's absolute path and its arguments.
        limits: What it may use.
        stdin: Its standard input.
        files: Texts by name, written to the directory before it starts.
        own_user: Where this program runs as root, give it a user id of its own.
        environment: All of its environment; None for a path to the system's programs.
    """
    user = transient_user() if own_user else None
    with (
        private_directory(user) as directory,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        for name, text in (files or {}).items():
            _write(Path(directory, name), text, user)
        process = start(
            limited(command, limits.resources(), user),
            directory,
            stdout=output,
            stderr=errors,
            environment=environment,
        )
        exit_code = _finish(process, encoded(stdin), limits.seconds)
        return Finished(exit_code, _read(output), _read(errors))


def start(
    command: list[str],
    directory: str,
    *,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A process in a session and a process group of its own, which takes its input from a pipe."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        cwd=directory,
        env={"PATH": os.defpath} if environment is None else environment,
        start_new_session=True,
        bufsize=0,
    )


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """The ends of a process's input and output that this program holds."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process was started without a pipe for its input or its output")
    return process.stdin, process.stdout


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything in its group, and wait for it."""
    # The group may be gone, or (macOS) be nothing but a process that waits to be waited for.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def encoded(text: str) -> bytes:
    """UTF-8, with question marks for what has none: a completion may hold halves of characters."""
    return text.encode("utf-8", "replace")


def _finish(process: subprocess.Popen[bytes], stdin: bytes, seconds: float) -> int | None:
    """The exit code; None, and the process killed, if it takes longer."""
    with process:
        try:
            process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill_group(process)
    return process.returncode


def _write(path: Path, text: str, owner: int | None) -> None:
    path.write_bytes(encoded(text))
    if owner is not None:
        os.chown(path, owner, owner)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
