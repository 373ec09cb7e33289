import os
import subprocess
import sys
import threading
import time

import pytest

from grpolib.text.rewards import Limits
from grpolib.text.rewards.processes import kill_group, pipes, run_limited, start

SHELL = "/bin/sh"
SHORT = Limits(seconds=1.0, processes=None)


def shell(script, limits=SHORT, **keywords):
    return run_limited((SHELL, "-c", script), limits, **keywords)


def test_what_a_command_says_and_how_it_ends():
    finished = shell("cat; echo mistake >&2; exit 3", stdin="in")
    assert (finished.exit_code, finished.output, finished.errors) == (3, "in", "mistake\n")


def test_a_signal_is_a_negative_code():
    assert shell("kill -9 $$").exit_code == -9


def test_files_lie_where_it_runs():
    assert shell("cat a.txt b.txt; pwd", files={"a.txt": "1", "b.txt": "2"}).output.startswith("12/")


def test_a_command_that_is_not_there_fails():
    finished = run_limited(("/no/such/command",), SHORT)
    assert finished.exit_code == 1
    assert "No such file" in finished.errors


def test_time_runs_out():
    started = time.monotonic()
    finished = shell("echo before; sleep 60", Limits(seconds=0.5, processes=None))
    assert time.monotonic() - started < 5
    assert (finished.exit_code, finished.output) == (None, "before\n")


def test_input_that_nobody_reads_is_no_trouble():
    assert shell("true", stdin="x" * 10**7).exit_code == 0
    assert shell("exec sleep 60", Limits(seconds=0.3, processes=None), stdin="x" * 10**7).exit_code is None


def test_its_whole_group_ends_with_it():
    # The orphans have stayed in the group: `nothing_left` looks for what still runs in the folder.
    started = time.monotonic()
    assert shell("sleep 60 & sleep 60 & (sleep 60 &) ; exit 0").exit_code == 0
    assert shell("sleep 60 & sleep 60", Limits(seconds=0.3, processes=None)).exit_code is None
    assert time.monotonic() - started < 10


def test_output_that_never_ends_stops_at_the_limit_on_files():
    finished = shell("yes; exit 7", Limits(file_size=1000, processes=None))
    assert len(finished.output) == 1000


def test_nothing_of_the_environment_is_inherited(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    assert set(shell("env").output.split("\n")) >= {f"PATH={os.defpath}"}
    assert "hidden" not in shell("env").output
    assert "A=1" in shell("env", environment={"A": "1", "PATH": os.defpath}).output


def test_no_descriptor_is_inherited(tmp_path):
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        listed = run_limited((sys.executable, "-I", "-S", "-c", "import os; print(os.listdir('/dev/fd'))"), SHORT)
    # The fourth is what lists them.
    assert listed.output == "['0', '1', '2', '3']\n"


def test_text_without_an_encoding():
    assert shell("cat", stdin="a\ud800b").output == "a?b"
    assert shell(r"printf '\377'").output == "\ufffd"


def test_threads_may_run_commands_at_once():
    found = []
    threads = [threading.Thread(target=lambda k=k: found.append(shell(f"echo {k}").output)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{k}\n" for k in range(6)]


def test_an_interrupt_leaves_nothing(monkeypatch):
    def interrupted(self, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shell("sleep 60")


def test_a_group_may_be_killed_twice(nothing_left):
    with start([SHELL, "-c", "sleep 60"], str(nothing_left), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        kill_group(process)
        kill_group(process)
    assert process.returncode == -9


def test_pipes_are_asked_for(nothing_left):
    with (
        start(
            [SHELL, "-c", "true"], str(nothing_left), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
        pytest.raises(ValueError, match="without a pipe"),
    ):
        pipes(process)
