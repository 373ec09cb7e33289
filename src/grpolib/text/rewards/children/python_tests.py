"""Runs code, then tests of it, and writes a token if all of them passed; input: JSON with code, tests and token."""

import ast
import builtins
import json
import os
import sys
from typing import Any

# Bound here, before the code can put something else in their place.
execute, write = exec, os.write


def main(code: str, tests: str, token: str) -> None:
    """Raises what the code or the tests raise."""
    report = silence()
    checks = compile(tests, "tests.py", "exec")
    names = test_functions(tests)
    pristine = dict(vars(builtins))
    written: dict[str, Any] = {"__name__": "completion"}
    execute(compile(code, "completion.py", "exec"), written)
    scope: dict[str, Any] = {**written, "__name__": "tests", "__builtins__": pristine}
    execute(checks, scope)
    for name in names:
        scope[name]()
    write(report, token.encode())


def test_functions(tests: str) -> list[str]:
    """Names of the functions `test_...` that a source defines at its top."""
    functions = [node.name for node in ast.parse(tests).body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]


def silence() -> int:
    """Nothing more to read, and nowhere to write but to the descriptor returned: the old output."""
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    return report


if __name__ == "__main__":
    main(**json.load(sys.stdin))
