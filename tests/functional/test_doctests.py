"""Every example in a docstring prints what it says."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import grpolib


def module_names():
    root = Path(grpolib.__file__).parent
    files = [file.relative_to(root.parent).with_suffix("") for file in sorted(root.rglob("*.py"))]
    files = [file for file in files if "children" not in file.parts]  # scripts, for processes of their own
    return [".".join(file.parts).removesuffix(".__init__") for file in files if file.name != "__main__"]


def imported(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("grpolib"):
            raise
        pytest.skip(f"needs {error.name}")


def documented(module):
    """(name, docstring) of a module, of what it defines, and of its classes' methods."""
    yield module.__name__, module.__doc__
    for name, thing in vars(module).items():
        # Not `doctest`'s own finder: it passes over functions that a decorator has wrapped.
        if getattr(thing, "__module__", None) != module.__name__ or not callable(thing):
            continue
        yield name, thing.__doc__
        for method_name, method in vars(thing).items() if inspect.isclass(thing) else ():
            yield f"{name}.{method_name}", getattr(method, "__doc__", None)


def examples(module):
    parser = doctest.DocTestParser()
    for name, text in documented(module):
        if isinstance(text, str) and ">>>" in text:
            yield parser.get_doctest(text, dict(vars(module)), name, module.__file__, 0)


@pytest.mark.parametrize("name", module_names())
def test_docstring_examples(name):
    runner = doctest.DocTestRunner()
    report = []
    for test in examples(imported(name)):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_decorated_functions_are_found():
    module = importlib.import_module("grpolib.functional.returns")
    assert {test.name for test in examples(module)} == {"discounted_returns", "generalized_advantages"}
