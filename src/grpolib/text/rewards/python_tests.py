"""Code that passes its unit tests."""

import ast
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpolib.text.rewards.answers import code_of
from grpolib.text.rewards.columns import column
from grpolib.text.rewards.limits import CHILDREN
from grpolib.text.rewards.parallel import graded_in_threads
from grpolib.text.rewards.programs import LimitedPython, RunProgram
from grpolib.text.rewards.protocol import Scores


@dataclass(frozen=True)
class PythonTests:
    r"""1 where the completion's code passes the row's tests, else 0. No tests: None.

    The code is the last fenced block of the completion, or all of it. The tests run behind it, under its names, with
    the builtins as they were: statements such as `assert f(2) == 4`, then each function `test_...` among them. Passing
    is shown by a token drawn for the run: printing, exiting and returning early show nothing. But code and tests
    share an interpreter; docs/rewards.md says what code that looks for a way can still do. `ProgramOutput` keeps
    what is expected out of the program's reach.

    Args:
        tests: Column of Python sources.
        run: Where programs run; give a sandbox of your own for more than the limits of `LimitedPython`.
        threads: Programs at a time; None for as many as there are cores.

    Raises:
        TypeError: Tests that are no text.
        ValueError: Tests that are no Python, or none at all.

    >>> PythonTests()(["Double."], ["```python\ndouble = lambda x: 2 * x\n```"], tests=["assert double(2) == 4"])
    [1.0]
    """

    tests: str = "tests"
    run: RunProgram = field(default_factory=LimitedPython)
    threads: int | None = None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        tests = column(self, columns, self.tests)
        for row, source in enumerate(tests):
            _check_source(row, source)
        return graded_in_threads(self._grade, completions, tests, self.threads)

    def _grade(self, completion: str, tests: str) -> float:
        task = {"code": code_of(completion), "tests": tests, "token": secrets.token_hex()}
        harness = (CHILDREN / "python_tests.py").read_text()
        return float(self.run(harness, json.dumps(task)) == task["token"])


def _check_source(row: int, source: object) -> None:
    if source is None:
        return
    if not isinstance(source, str):
        raise TypeError(f"the tests of row {row} are a {type(source).__name__}: join them into one text, a line each")
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"the tests of row {row} are no Python: {error}") from error
    if not statements:
        raise ValueError(f"row {row} has no tests, so any code would pass: give some, or None")
