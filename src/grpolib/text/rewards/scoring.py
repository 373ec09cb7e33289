"""Calling a reward, and holding it to what it promised."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from typing import Any

from grpolib.text.rewards.protocol import Reward, Score, reward_name
from grpolib.text.rewards.steps import StepRewards


def score(
    reward: Reward, prompts: Sequence[Any], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
) -> list[Score]:
    """Scores of a batch of completions by one reward, sync or async, checked.

    A coroutine is run to its end on an event loop of its own, in another thread where this one already runs a loop.

    Args:
        reward: See `Reward`.
        prompts: One per completion, of any type that the reward reads.
        completions: Texts.
        columns: By name, one item per completion.

    Returns:
        One finite float or `StepRewards` per completion, or None where the reward does not apply.

    Raises:
        TypeError: The reward gave something else than a list of numbers, `StepRewards` and None.
        RuntimeError: It, or a program that it ran, called `exit`.
        ValueError: It gave another count, or a value that is not finite; or prompts and columns differ in length.
    """
    _check_rows(prompts, completions, columns)
    # Lists of its own: what a reward does to them reaches neither the next reward nor the batch.
    own = {name: list(items) for name, items in columns.items()}
    try:
        values = reward(prompts=list(prompts), completions=list(completions), **own)
        values = _awaited(values) if inspect.isawaitable(values) else values
    except SystemExit as exit:  # of a program that a completion holds, say; it would end the run in silence
        raise RuntimeError(f"{reward_name(reward)} asked Python to exit ({exit.code!r})") from exit
    return checked(reward_name(reward), values, len(completions))


def _check_rows(prompts: Sequence[Any], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> None:
    for name, items in {"prompts": prompts, **columns}.items():
        if len(items) != len(completions):
            raise ValueError(f"{name!r} has {len(items)} items for {len(completions)} completions: one for each")


def _awaited(values: Awaitable[Any]) -> Any:
    async def finish() -> Any:
        return await values

    if not _loop_runs():
        return asyncio.run(finish())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, finish()).result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def checked(name: str, values: Any, count: int) -> list[Score]:
    """`count` scores, or an error that says what `name` gave instead."""
    ordered = hasattr(values, "__len__") and hasattr(values, "__getitem__") and getattr(values, "ndim", 1) > 0
    if isinstance(values, (str, bytes, Mapping)) or not ordered:
        raise TypeError(f"{name} gave {_shown(values)}: expected a list of {count} numbers, or None in a row's place")
    if len(values) != count:
        raise ValueError(f"{name} gave {len(values)} values for {count} completions: one for each, None for none")
    return [_score(name, row, value) for row, value in enumerate(values)]


def _score(name: str, row: int, value: Any) -> Score:
    if value is None or isinstance(value, StepRewards):
        return value
    is_scalar = hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1  # of NumPy or torch
    number = value.item() if is_scalar else value
    if not isinstance(number, Real):
        raise TypeError(f"{name} gave {_shown(value)} for completion {row}: expected a number, StepRewards or None")
    try:
        finite = float(number)
    except OverflowError:
        finite = math.inf
    if not math.isfinite(finite):
        raise ValueError(f"{name} gave {_shown(value)} for completion {row}: expected a finite number, or None")
    return finite


def _shown(value: Any) -> str:
    """The value and its type, cut to a line; an integer may be too long to be written at all."""
    try:
        text = repr(value)
    except Exception:
        text = "a value"
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
