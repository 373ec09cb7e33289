"""One process at a time; the lock goes with its process, also by a crash. Linux and macOS."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[BinaryIO]:
    """The file, open to read and append, unbuffered, while no other process has it this way.

    Args:
        path: Made if missing.
        wait: Until the lock is free.

    Raises:
        BlockingIOError: It is taken, and `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        file.seek(0)
        yield file
