"""Contenders, each in a process of its own, taken in turns."""

import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import torch

Rows: TypeAlias = list[dict[str, Any]]
Call: TypeAlias = Callable[[], Any]


class Table(NamedTuple):
    """Rows with equal keys, which are the heads of the columns; the note says how they came about."""

    note: str
    rows: Rows
    raw: Any = None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def is_installed(package: str, what: str) -> bool:
    """Whether a package is there; if not, one line says what is left out."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        say(f'{package} is not installed, so {what} is left out: pip install -e ".[box2d,plots,bench]"')
    return found


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a new interpreter: with threads, caches and peak memory of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)


def in_turns(contenders: dict[str, Call], repeats: int) -> dict[str, list[Any]]:
    """Every contender's results; when the machine slows down for a while, it does so for all."""
    results: dict[str, list[Any]] = {name: [] for name in contenders}
    for repeat in range(1, repeats + 1):
        for name, measure in contenders.items():
            seconds = seconds_of(lambda: results[name].append(in_fresh_process(measure)))  # noqa: B023  called at once
            say(f"  {name}, {repeat} of {repeats}: {seconds:.0f} s")
    return results


def seconds_of(function: Call) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def medians(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(record[name] for record in records) for name in records[0]}
