"""A directory for one process, gone afterwards whatever the process did in it."""

import itertools
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager


@contextmanager
def private_directory(owner: int | None = None) -> Generator[str, None, None]:
    """A new directory that only its owner may open: this process's user, or another one."""
    directory = tempfile.mkdtemp(prefix="grpolib-")
    try:
        if owner is not None:
            os.chown(directory, owner, owner)
        yield directory
    finally:
        remove_tree(directory)


def remove_tree(root: str) -> None:
    """Remove a directory that hostile code has filled; nothing may still be writing to it.

    No link is followed, no permission bit stops it, and no depth: what stands in a directory is moved up before the
    directory is removed, so paths stay short. (`shutil.rmtree` recurses.)
    """
    numbers = itertools.count()
    os.chmod(root, 0o700)
    while entries := list(os.scandir(root)):
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _empty_into(root, entry.path, numbers)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
    os.rmdir(root)


def _empty_into(root: str, directory: str, numbers: Iterator[int]) -> None:
    os.chmod(directory, 0o700)
    for inner in list(os.scandir(directory)):
        if inner.is_dir(follow_symlinks=False):
            os.chmod(inner.path, 0o700)  # a directory moves only if it may be written to
        os.rename(inner.path, os.path.join(root, _free_name(root, numbers)))


def _free_name(root: str, numbers: Iterator[int]) -> str:
    return next(name for name in map(str, numbers) if not os.path.lexists(os.path.join(root, name)))
