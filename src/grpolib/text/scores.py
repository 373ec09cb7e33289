"""Calling a reward function, and what it may give back."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class StepRewards:
    """Rewards of the steps of one completion's text: process supervision.

    Args:
        ends: Where each step ends in the text: characters before the end, ascending, within [1, len(text)].
        values: The reward of each step, finite.

    Raises:
        ValueError: Not one value per end, ends that do not ascend, or a value that is not finite.
    """

    ends: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.ends) != len(self.values) or len(self.ends) == 0:
            raise ValueError(f"{len(self.ends)} ends and {len(self.values)} values: one per step, of >= 1 steps")
        if any(later <= earlier for earlier, later in zip([0, *self.ends], self.ends, strict=False)):
            raise ValueError(f"ends are {list(self.ends)}: they must be >= 1 and ascend")
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"values are {list(self.values)}: they must be finite; None leaves a completion unscored")


Score: TypeAlias = float | StepRewards | None
"""A completion's reward, its steps' rewards, or None where it could not be scored."""
RewardFunction: TypeAlias = Callable[..., Any]
"""Called with prompts, completions and the rows' other columns, a value each; returns, or awaits, a score each."""


def name_of(reward: RewardFunction) -> str:
    """What to call a reward function in a message."""
    return str(getattr(reward, "__name__", repr(reward)))


def scores_of(
    reward: RewardFunction, prompts: Sequence[Any], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
) -> list[Score]:
    """One score per completion.

    Raises:
        TypeError: The function is not called with these columns, or gave something that is no score.
        ValueError: It gave another number of scores, or one that is not finite.
    """
    given = reward(prompts=list(prompts), completions=list(completions), **columns)
    if inspect.isawaitable(given):
        given = _awaited(given)
    try:
        scores = list(given)
    except TypeError:
        raise TypeError(
            f"the reward {name_of(reward)} gave {given!r}: expected a list of {len(completions)} values"
        ) from None
    if len(scores) != len(completions):
        raise ValueError(
            f"the reward {name_of(reward)} gave {len(scores)} values for {len(completions)} completions: expected one "
            "each, None where a completion cannot be scored"
        )
    return [_checked(reward, score, completions[place]) for place, score in enumerate(scores)]


def _checked(reward: RewardFunction, score: Any, completion: str) -> Score:
    if score is None or isinstance(score, StepRewards):
        return score
    try:
        value = float(score)
    except (TypeError, ValueError):
        raise TypeError(
            f"the reward {name_of(reward)} gave {score!r} for the completion {completion!r}: expected a number, "
            "StepRewards or None"
        ) from None
    if not math.isfinite(value):
        raise ValueError(
            f"the reward {name_of(reward)} gave {value} for the completion {completion!r}: rewards are finite; give "
            "None to leave it out"
        )
    return value


def _awaited(awaitable: Any) -> Any:
    async def wait() -> Any:
        return await awaitable

    coroutine: Coroutine[Any, Any, Any] = wait()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # A notebook runs a loop of its own in this thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
