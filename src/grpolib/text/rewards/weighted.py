"""Several rewards in one, each under a name."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from grpolib.text.rewards.protocol import Reward, Score, Scores, reward_name, totals
from grpolib.text.rewards.scoring import checked, score
from grpolib.text.rewards.steps import StepRewards

Missing: TypeAlias = Literal["leave_out", "none"]


@dataclass(frozen=True)
class Weighted:
    """The weighted sum of several rewards, sync or async.

    Args:
        rewards: By the name that the metrics show.
        weights: By the same names; 1 where there is none. Any sign; the sum is not divided by them.
        missing: What a part that does not apply (None) does. "leave_out": the others are summed as they are, None only
            where all are. "none": the whole is None, so the completion stays out of its group.

    >>> reward = Weighted({"long": lambda completions, **_: [len(text) for text in completions]}, {"long": 0.5})
    >>> reward(["?"], ["four"])
    [2.0]
    """

    rewards: Mapping[str, Reward]
    weights: Mapping[str, float] = field(default_factory=dict)
    missing: Missing = "leave_out"

    def __post_init__(self) -> None:
        if not self.rewards:
            raise ValueError("Weighted needs a reward: Weighted({'correct': exact_match, ...})")
        if unknown := sorted(self.weights.keys() - self.rewards.keys()):
            raise ValueError(f"weights of {unknown}, which are not among the rewards {sorted(self.rewards)}")
        if not all(map(math.isfinite, self.weights.values())):
            raise ValueError(f"the weights {dict(self.weights)} must be finite")
        if self.missing not in get_args(Missing):
            raise ValueError(f"missing is {self.missing!r}: choose one of {get_args(Missing)}")

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The weighted sums."""
        return self.combine(self.parts(prompts, completions, **columns))

    def parts(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> dict[str, Scores]:
        """Each reward's own values, unweighted.

        Raises:
            TypeError: A reward gave `StepRewards`, which have no sum with numbers.
        """
        return {
            name: _numbers(name, score(reward, prompts, completions, columns)) for name, reward in self.rewards.items()
        }

    def combine(self, parts: Mapping[str, Scores]) -> Scores:
        """The weighted sum of each row."""
        return [self._sum(dict(zip(parts, row, strict=True))) for row in zip(*parts.values(), strict=True)]

    def _sum(self, row: Mapping[str, float | None]) -> float | None:
        given = {name: value for name, value in row.items() if value is not None}
        if not given or (self.missing == "none" and len(given) < len(row)):
            return None
        return sum(self.weights.get(name, 1.0) * value for name, value in given.items())


def score_parts(
    reward: Reward, prompts: Sequence[Any], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
) -> tuple[list[Score], dict[str, Scores]]:
    """`score`, and the values by name for the metrics: of each part of a `Weighted`, or of the reward itself."""
    if not isinstance(reward, Weighted):
        scores = score(reward, prompts, completions, columns)
        return scores, {reward_name(reward): totals(scores)}
    parts = reward.parts(prompts, completions, **columns)
    return checked(reward_name(reward), reward.combine(parts), len(completions)), parts


def _numbers(name: str, scores: Sequence[Score]) -> Scores:
    for row, value in enumerate(scores):
        if isinstance(value, StepRewards):
            raise TypeError(f"{name!r} gave {value} for completion {row}: Weighted adds numbers; give it alone")
    return totals(scores)
