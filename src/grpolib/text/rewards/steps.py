"""Rewards of the steps of a completion."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


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

    @property
    def total(self) -> float:
        """The completion's return."""
        return float(sum(self.values))
