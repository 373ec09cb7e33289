"""A reward that runs elsewhere: on worker processes of this machine, or on a Ray cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from grpolib.functional._checks import check_whole
from grpolib.policies import ActingPolicy
from grpolib.sampling.engines import Run, Workers, make_engine
from grpolib.text.rewards.protocol import Reward, Score, reward_name
from grpolib.text.rewards.scoring import score


class OnWorkers:
    """A reward that is called on workers, for some completions at a time; the scores are those of a call here.

    The reward travels once, by cloudpickle. A Ray worker that is lost is replaced and its completions are scored
    again; a reward that raises, hangs or ends its process is one `WorkerError`, and the next call starts anew.
    In a `Weighted` it stands for a part: `Weighted({"tests": OnWorkers(PythonTests(), 8), "format": ThinkAnswer()})`.

    Args:
        reward: Judges a completion by itself, or by those of its group where `rows` is the group's size.
        workers: As of `GroupSampler`: a number of processes, "auto", `WorkerProcesses` or `RayWorkers`.
        rows: Completions of a call, >= 1.

    Raises:
        TypeError: The reward cannot be called, or rows is no whole number.
        ValueError: rows < 1, or workers that are none.
        ImportError: `RayWorkers` without Ray.
    """

    def __init__(self, reward: Reward, workers: Workers, *, rows: int = 1) -> None:
        if not callable(reward):
            raise TypeError(f"reward is {reward!r}: give a function")
        check_whole(rows=rows)
        if rows < 1:
            raise ValueError(f"rows is {rows}: a call needs >= 1 completions")
        self.__name__ = reward_name(reward)
        self.rows = rows
        self._stage = _Scoring(reward)
        self._engine = make_engine(workers)
        self._no_policy = cast(ActingPolicy, nn.Module())  # engines send one along

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> list[Score]:
        """The scores, in the order of the completions."""
        jobs = [
            _Rows(start, *_cut(slice(start, start + self.rows), prompts, completions, columns))
            for start in range(0, len(completions), self.rows)
        ]
        parts: list[list[Score]] = self._engine.map(self._stage, self._no_policy, jobs)
        return [value for part in parts for value in part]

    def close(self) -> None:
        """End the workers; the next call starts others. May be called twice."""
        self._engine.close()


@dataclass(frozen=True)
class _Scoring:
    """The stage: nothing to build, the reward is there already."""

    reward: Reward

    def build(self) -> Run:
        return lambda _, rows: score(self.reward, rows.prompts, rows.completions, rows.columns)


@dataclass(frozen=True)
class _Rows:
    """A job."""

    start: int
    prompts: Sequence[Any]
    completions: Sequence[str]
    columns: Mapping[str, Sequence[Any]]

    def __str__(self) -> str:
        return f"the reward of completions {self.start} to {self.start + len(self.completions) - 1}"


def _cut(
    rows: slice, prompts: Sequence[Any], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
) -> tuple[Sequence[Any], Sequence[str], dict[str, Sequence[Any]]]:
    return prompts[rows], completions[rows], {name: items[rows] for name, items in columns.items()}
