"""What a reward is."""

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from grpolib.text.rewards.steps import StepRewards

Score: TypeAlias = float | StepRewards | None
"""What a completion is worth, any unit, finite, or each of its steps; None where the reward does not apply."""
Scores: TypeAlias = list[float | None]
"""One value per completion by a reward that knows no steps."""


@runtime_checkable
class Reward(Protocol):
    """From prompts and completions to one score per completion; a plain function will do, also an `async` one.

    It is called by keyword, with every other column of the data: one item per completion, a prompt's items repeated
    for each of its completions. A function names the columns that it reads and takes the rest as `**columns`.
    """

    # With `*args: Any, **kwargs: Any` a type checker lets a function name the columns that it reads.
    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[str], *args: Any, **columns: Any
    ) -> Sequence[Score] | Awaitable[Sequence[Score]]:
        """The scores of a batch of completions."""
        ...


def totals(scores: Sequence[Score]) -> Scores:
    """One value per completion: of its steps together where there are several."""
    return [score.total if isinstance(score, StepRewards) else score for score in scores]


def reward_name(reward: object) -> str:
    """What errors and metrics call a reward: a function's name, or an object's class."""
    return str(getattr(reward, "__name__", type(reward).__name__))
