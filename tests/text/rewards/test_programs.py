import os
import time
from pathlib import Path

import pytest

from grpolib.text.rewards import LimitedPython, Limits, RunProgram
from grpolib.text.rewards.limits import ISOLATED

RUN = LimitedPython(Limits(seconds=1.0))


def output(program, stdin="", run=RUN):
    return run(program, stdin)


def test_a_program_reads_and_prints():
    assert output("print(input()[::-1])", "abc") == "cba\n"
    assert output("print('é')") == "é\n"
    assert isinstance(RUN, RunProgram)


ENDING_BADLY = [
    "1/0",
    "exit(1)",
    "raise SystemExit('bad')",
    "import os; os._exit(3)",
    "import os; os.abort()",
    "import os; os.kill(os.getpid(), 9)",
    "def f(): f()\nf()",
    "x = (",
    "\x00",
    "\ud800",
]


@pytest.mark.parametrize("program", ENDING_BADLY)
def test_what_ends_badly_has_no_output(program):
    assert output("print('before')\n" + program) is None


def test_the_interpreter_is_isolated(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert (
        output("import sys; print(sys.flags.isolated, sys.flags.no_site, 'site-packages' in str(sys.path))")
        == "1 1 False\n"
    )
    assert output("import grpolib") is None
    assert output("import os; print(sorted(os.listdir()), 'main.py' in os.listdir())") == "['main.py'] True\n"


def test_what_is_installed_can_be_let_in():
    run = LimitedPython(Limits(seconds=5.0), [option for option in ISOLATED if option != "-S"])
    assert output("import pytest; print('here')", run=run) == "here\n"


def test_the_environment_is_empty(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    # Python itself may set the locale.
    assert output("import os; print({*os.environ} - {'LC_CTYPE', 'PATH'})") == "set()\n"


# Limits.


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)", "input()\nwhile True: pass"])
def test_time(program):
    started = time.monotonic()
    assert output(program, "\n") is None
    assert time.monotonic() - started < 5


def test_signals_that_a_program_ignores_do_not_save_it():
    ignoring = "import signal\nfor name in 'TERM', 'INT', 'XCPU', 'ALRM', 'HUP', 'QUIT':\n"
    ignoring += "    signal.signal(getattr(signal, f'SIG{name}'), signal.SIG_IGN)\n"
    assert output(ignoring + "while True: pass") is None


@pytest.mark.parametrize("program", ["x = [0] * 10**10", "x = 'a'\nwhile True: x += x", "x = b'a' * 2**31"])
def test_memory(program):
    assert output(program + "\nprint('fits')") is None


def test_memory_is_limited_and_not_all_taken_away():
    assert output("x = bytes(10**8); print('fits')") == "fits\n"


@pytest.mark.parametrize("where", ["'here'", "'/tmp/grpolib-flood'", "'/dev/shm/grpolib-flood'"])
def test_file_size(where):
    flood = f"file = open({where}, 'wb')\nimport os\nos.unlink({where})\nwhile True: file.write(b'x' * 10**6)"
    started = time.monotonic()
    assert output(flood) is None
    assert time.monotonic() - started < 5


def test_output_is_cut():
    run = LimitedPython(Limits(seconds=2.0, file_size=10_000))
    assert output("while True: print('x' * 1000)", run=run) is None
    assert output("import sys\nwhile True: sys.stderr.write('x' * 1000)", run=run) is None


def test_open_files():
    assert output("files = [open('main.py') for _ in range(1000)]") is None


FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        print("no processes")
        break
"""


@pytest.mark.parametrize(
    "program",
    [
        FORK_BOMB,
        "from threading import Thread\ntry: Thread(target=print).start()\nexcept RuntimeError: print('no processes')",
        "import subprocess\ntry:\n    subprocess.run(['true'])\nexcept OSError: print('no processes')",
        "import os\ntry:\n    os.posix_spawn('/bin/true', ['true'], {})\nexcept OSError: print('no processes')",
    ],
)
def test_processes_and_threads(program):
    assert output(program) == "no processes\n"


def test_limits_cannot_be_raised():
    raising = "import resource as r\ntry: r.setrlimit(r.RLIMIT_{0}, (2**40, 2**40))\nexcept ValueError: print('kept')"
    for name in ("CPU", "AS", "FSIZE", "NPROC", "NOFILE"):
        assert output(raising.format(name)) == "kept\n", name


def test_a_process_that_leaves_its_group_is_only_possible_where_processes_are():
    leaving = "import os\nif os.fork() == 0:\n    os.setsid()\nprint('left')"
    assert output(leaving) is None
    assert output(leaving, run=LimitedPython(Limits(seconds=2.0, processes=None))) is not None


# What it does to files.


def test_a_link_out_of_the_directory_saves_nothing_and_costs_nothing(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    kept.chmod(0o600)
    program = f"import os; os.symlink({str(tmp_path)!r}, 'out'); os.symlink({str(kept)!r}, 'file'); print('linked')"
    assert output(program) == "linked\n"
    assert kept.read_text() == "mine"


def test_permissions_and_depth_do_not_save_a_directory():
    # `nothing_left` looks for it.
    assert (
        output("import os; os.makedirs('a/b'); os.chmod('a/b', 0); os.chmod('a', 0); os.chmod('.', 0); print(1)")
        == "1\n"
    )
    deep = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')\nprint(2)"
    assert output(deep, run=LimitedPython(Limits(seconds=5.0))) == "2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends a user id")
def test_run_by_root_a_program_is_not_root(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    assert output("import os; print(os.getuid() in range(61184, 65520), os.getgroups())") == "True []\n"
    assert output("import os; os.setuid(0)") is None
    assert output(f"open({str(mine)!r}, 'w')") is None
    assert output(f"import os; os.unlink({str(mine)!r})") is None
    assert output("import os; os.kill(os.getppid(), 9)") is None
    assert output("import os; print(open(f'/proc/{os.getppid()}/environ').read())") is None
    assert mine.read_text() == "mine"


# The check before the first program.


def test_an_interpreter_that_does_not_run_is_an_error_and_no_reward():
    with pytest.raises(RuntimeError, match=r"/no/such/python runs nothing within Limits.*No such file"):
        LimitedPython(Limits(seconds=1.0), ["/no/such/python"])("print(1)", "")


def test_limits_in_which_nothing_runs_are_an_error():
    with pytest.raises(RuntimeError, match="raise the limits"):
        LimitedPython(Limits(seconds=1.0, memory=10**6))("print(1)", "")


def test_processes_that_the_system_does_not_limit_are_an_error(tmp_path):
    # A Python that says what one without limits would say.
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho processes\n")
    fake.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"nothing keeps code from starting processes.*Limits\(processes=None\)"):
        LimitedPython(Limits(seconds=1.0), [str(fake)])("print(1)", "")
    assert LimitedPython(Limits(seconds=1.0, processes=None), [str(fake)])("print(1)", "") == "processes\n"


def test_a_program_cannot_look_like_a_broken_system():
    for code in (1, 125, 126, 127):
        assert output(f"exit({code})") is None
    assert output("import os; os.execv('/bin/false', ['false'])") is None
