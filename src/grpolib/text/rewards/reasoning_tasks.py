"""Tasks of reasoning-gym: prompts, columns, and the reward that scores them."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpolib.text.rewards.answers import check_tag, tagged
from grpolib.text.rewards.columns import column
from grpolib.text.rewards.extras import require
from grpolib.text.rewards.judges import Judge
from grpolib.text.rewards.protocol import Scores
from grpolib.text.rewards.seconds import check_seconds


@dataclass(frozen=True)
class ReasoningGym:
    """A reasoning-gym dataset as prompts and columns, and the reward that calls its scorer: from 0 to 1.

    Some scorers evaluate what they are given, so they run in another process, one per batch (about two seconds).

    Args:
        name: Of the dataset, such as "countdown".
        settings: Of its configuration, as JSON; `seed` and `size` among them.
        tag: None scores the whole completion; a word what stands between `<tag>` and `</tag>`, once.
        seconds: Wall-clock time for one completion.

    Raises:
        ImportError: reasoning-gym is not installed.

    Source: Reasoning Gym (arXiv:2505.24760).
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=lambda: {"seed": 0, "size": 500})
    tag: str | None = "answer"
    seconds: float = 5.0

    def __post_init__(self) -> None:
        require("reasoning_gym", "ReasoningGym", "reasoning-gym")
        check_tag(self, self.tag)
        check_seconds(self, self.seconds)

    @functools.cached_property
    def prompts(self) -> list[str]:
        """The questions."""
        from reasoning_gym import create_dataset

        return [entry["question"] for entry in create_dataset(self.name, **self.settings)]

    @property
    def columns(self) -> dict[str, list[int]]:
        """The number of each prompt's task, which the reward reads."""
        return {"task": list(range(len(self.prompts)))}

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The scorer's values; 0 where there is no answer, or the scorer fails or takes too long. No task: None."""
        tasks = column(self, columns, "task")
        judge = Judge("reasoning.py", self.seconds, {"name": self.name, "settings": dict(self.settings)}, True)
        verdicts = judge([self._question(*row) for row in zip(completions, tasks, strict=True)])
        return [None if task is None else _value(verdict) for task, verdict in zip(tasks, verdicts, strict=True)]

    def _question(self, completion: str, task: int | None) -> Mapping[str, Any] | None:
        answer = completion.strip() if self.tag is None else tagged(completion, self.tag)
        return None if task is None or answer is None else {"answer": answer, "task": int(task)}


def _value(verdict: Any) -> float:
    return verdict if isinstance(verdict, float) and math.isfinite(verdict) else 0.0
