"""Every test of a reward leaves no process and no file behind."""

import os
import tempfile
import time
from pathlib import Path

import pytest

PROC = Path("/proc/self").exists()


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory, monkeypatch):
    """Temporary files go to a folder of the test's own, which must be empty afterwards."""
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = children()
    yield scratch
    assert os.listdir(scratch) == []
    assert children() == before
    deadline = time.monotonic() + 5  # what was killed is gone only when the kernel comes to it
    while working_in(scratch) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert working_in(scratch) == []


def children():
    """Process numbers of this process's children, also of those that nobody has waited for."""
    return {int(entry.name) for entry in processes() if parent(entry) == os.getpid()}


def working_in(folder):
    """Processes that run in a folder, or ran there when it was removed."""
    return [entry.name for entry in processes() if link(entry / "cwd").startswith(str(folder))]


def processes():
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()] if PROC else []


def parent(entry):
    try:
        # The name, in brackets, may hold anything.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""
