"""Packages that only some rewards need."""

import importlib.util


def require(package: str, reward: str, extra: str) -> None:
    """Raise one line that says what to install, unless the package is there."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f'{reward} needs {package}: pip install "grpolib[{extra}]"', name=package)
