import time

import pytest

from grpolib.text.rewards import LimitedPython, Limits, PythonTests, score

TESTS = "assert double(2) == 4\nassert double(-1) == -2"
CODE = "def double(x):\n    return 2 * x\n"
RUN = LimitedPython(Limits(seconds=1.0))


def value(completion, tests=TESTS, run=RUN):
    return score(PythonTests(run=run), ["?"], [completion], {"tests": [tests]})[0]


@pytest.mark.parametrize(
    "completion",
    [
        CODE,
        f"Think.\n```python\n{CODE}```\nDone.",
        f"```python\ndouble = 1\n```\nNo:\n```python\n{CODE}```",
        "print('loud' * 1000)\n" + CODE,
        "import math, json, collections\n" + CODE,
        CODE + "\nif __name__ == '__main__':\n    raise SystemExit",
        "from __future__ import annotations\n" + CODE,
        "import sys\nsys.stdout.close()\n" + CODE,
    ],
)
def test_code_that_passes(completion):
    assert value(completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "I would double it.",
        "double = 3",
        "def double(x): return x",
        "def double(x): return 4",
        "def double(x): 1/0",
        "def double(x): return 2 *",
        "\x00",
        "\ud800",
        "x" * 10**6,
        "# -*- coding: nonsense -*-\ndef double(x): return x",
        "(" * 10_000,
        "lambda: 0\n" * 20_000,
    ],
)
def test_code_that_fails(completion):
    assert value(completion) == 0.0


# Ways to claim success.

CHEATS = {
    "exit": "import os; os._exit(0)",
    "system exit": "exit(0)",
    "exit later": "def double(x):\n    import os\n    os._exit(0)",
    "system exit later": "def double(x): raise SystemExit(0)",
    "exception later": "class Passed(BaseException): pass\ndef double(x): raise Passed",
    "print": "print('passed', 'OK', '1.0', True)\nexit(0)",
    "write anywhere": "import os\nfor n in range(64):\n    try: os.write(n, b'passed')\n    except OSError: pass",
    "new process": "import os\nos.execv('/bin/true', ['true'])",
    "kill": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "exec is nothing": "import builtins\nbuiltins.exec = lambda *a: None\nbuiltins.compile = lambda *a: None",
    "no assertions": "import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = AssertionError",
    "builtins of its own": "__builtins__ = {}\nimport builtins\nbuiltins.double = lambda x: 2 * x",
    "other name": "import sys\nsys.modules['double'] = lambda x: 2 * x",
    "a trace function": "import sys\nsys.settrace(lambda *a: exit(0))\ndef double(x): return 0",
    "an exit handler": "import atexit, os\natexit.register(lambda: os.write(1, b'passed'))",
    "standard input": "import sys\nprint(sys.stdin.read())\nexec(sys.stdin.read())",
    "the command line": "print(open('/proc/self/cmdline').read())\nopen('/proc/self/fd/3', 'w').write('passed')",
    "an injected harness": "'''\n''' ; token = ''\ndef main(**_): pass",
    "a thread": "import threading, os\nthreading.Timer(0, lambda: os._exit(0)).start()",
    "a fork": "import os\nif os.fork(): os._exit(0)",
    "nothing ever": "while True: pass",
    "recursion": "def double(x): return double(x)",
    "all memory": "x = [0] * 10**11",
    "flood": "while True: print('passed' * 10_000)",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_success_is_claimed(cheat):
    started = time.monotonic()
    assert value(CHEATS[cheat]) == 0.0
    assert time.monotonic() - started < 5


def test_replaced_builtins_do_not_reach_the_tests():
    code = (
        "import builtins\nbuiltins.abs = lambda x: 4\nbuiltins.isinstance = lambda *a: True\ndef double(x): return 'no'"
    )
    assert value(code, "assert isinstance(double(2), int)") == 0.0
    assert value(code, "assert abs(-3) == 4") == 0.0


def test_what_the_page_says_is_not_prevented():
    # docs/rewards.md warns of both; a test that they work keeps it true.
    equal = "class Equal:\n    __eq__ = lambda *_: True\ndouble = lambda x: Equal()"
    assert value(equal) == 1.0
    frames = "import os, sys\nframe = sys._getframe()\nwhile 'token' not in frame.f_locals: frame = frame.f_back\n"
    frames += "os.write(frame.f_locals['report'], frame.f_locals['token'].encode())\nos._exit(0)"
    assert value(frames) == 1.0
    assert value(equal, "assert type(double(2)) is int and double(2) == 4") == 0.0


# Tests.


def test_functions_among_the_tests_are_called():
    tests = "def test_2():\n    assert double(2) == 4\ndef helper(): 1/0\ndef test_3():\n    assert double(3) == {}\n"
    assert value(CODE, tests.format(6)) == 1.0
    assert value(CODE, tests.format(7)) == 0.0


def test_functions_of_the_code_are_not_tests():
    assert value("def test_it(): 1/0\n" + CODE) == 1.0
    assert value("def test_two(): pass\n" + CODE, "def test_two():\n    assert double(2) == 5") == 0.0


def test_tests_that_are_no_python_are_an_error():
    with pytest.raises(ValueError, match="the tests of row 0 are no Python"):
        value(CODE, "assert double(2 == 4")


def test_no_tests_no_value():
    assert value(CODE, None) is None


def test_rows_have_tests_of_their_own():
    completions = [CODE, "def double(x): return x", CODE]
    tests = [TESTS, "assert double(2) == 2", "assert double(2) == 2"]
    assert score(PythonTests(run=RUN), ["?"] * 3, completions, {"tests": tests}) == [1.0, 1.0, 0.0]


# A sandbox of one's own.


def test_a_program_runs_where_the_user_says():
    calls = []

    def sandbox(program, stdin, /):
        calls.append((program, stdin))
        return RUN(program, stdin)

    assert value(CODE, run=sandbox) == 1.0
    assert value("double = 1", run=sandbox) == 0.0
    assert len(calls) == 2
    assert CODE not in calls[0][0]


@pytest.mark.parametrize("output", [None, "", "passed", "0" * 64])
def test_nothing_but_the_token_is_success(output):
    assert value(CODE, run=lambda program, stdin: output) == 0.0


def test_tokens_differ():
    seen = []
    for _ in range(2):
        value(CODE, run=lambda program, stdin: seen.append(stdin))
    assert seen[0] != seen[1]


def test_what_stands_around_the_token_is_no_success():
    assert value(CODE, run=lambda program, stdin: f"{RUN(program, stdin)}\n") == 0.0


@pytest.mark.parametrize("tests", ["", "  \n", "# later"])
def test_tests_that_test_nothing_are_refused(tests):
    with pytest.raises(ValueError, match="row 0 has no tests, so any code would pass"):
        PythonTests()(["?"], [CODE], tests=[tests])


@pytest.mark.parametrize("tests", [[], ["assert True"]])
def test_tests_that_are_no_text_are_refused(tests):
    with pytest.raises(TypeError, match="the tests of row 0 are a list: join them"):
        PythonTests()(["?"], [CODE], tests=[tests])
