"""Values of answers to the tasks of a reasoning-gym dataset, by its own scorer."""

from collections.abc import Callable
from typing import Any

from reasoning_gym import create_dataset


def make_judge(name: str, settings: dict[str, Any]) -> Callable[[str, int], float]:
    """A judge of answers to a dataset's tasks; the same name and settings make the same tasks."""
    dataset = create_dataset(name, **settings)

    def judge(answer: str, task: int) -> float:
        return float(dataset.score_answer(answer, dataset[task]))

    return judge
