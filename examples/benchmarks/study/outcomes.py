"""How a policy's episodes went: returns, landings, fuel; by argmax and by sample from the same starts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from torch import nn

from grpolib import evaluate
from grpolib.evaluation import EpisodeStatistics
from study.rows import ENV

WAYS = ("argmax", "sampled")
FIGURES = ("mean", "std", "solved", "landed", "crashed", "timed_out", "length", "engine")
"""Over the episodes: return (mean, std with divisor N), shares, mean length in steps, mean engine use."""
COLUMNS = (*(f"{way}_{figure}" for way in WAYS for figure in FIGURES), "start_entropy")

ENGINE_USE = (0.0, 0.03, 0.3, 0.03)
"""What LunarLander charges for each action: nothing, a side engine, the main engine, the other side."""
LANDED, CRASHED = 100, -100
"""The last reward of an episode replaces all others."""


class Episode(NamedTuple):
    """How one episode went."""

    length: int
    outcome: str
    engine: float


Log: TypeAlias = "Mapping[int | None, list[Episode]]"
"""The episodes of each reset seed, in the order in which they were flown."""


class Flight(gymnasium.Wrapper):
    """Changes nothing and notes how each episode went, under its reset seed.

    Args:
        env: LunarLander with discrete actions.
        log: Takes the episodes.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], log: Log) -> None:
        super().__init__(env)
        self._log = log

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        self._seed, self._length, self._engine = seed, 0, 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take a step."""
        result = super().step(action)
        _, reward, terminated, truncated, _ = result
        self._length += 1
        self._engine += ENGINE_USE[action]
        if terminated or truncated:
            outcome = "timed_out" if not terminated else "landed" if reward == LANDED else "crashed"
            self._log[self._seed].append(Episode(self._length, outcome, self._engine))
        return result


def measure(policy: nn.Module, *, episodes: int, first_seed: int) -> dict[str, float]:
    """Evaluate in the full environment, whatever the policy was trained in; the keys are `COLUMNS`.

    Args:
        policy: As `grpolib.evaluate` takes it.
        episodes: Each way, >= 1.
        first_seed: Reset seed of the first; the others follow it.
    """
    log: Log = defaultdict(list)
    report = evaluate(policy, partial(_recorded, log), episodes=episodes, first_seed=first_seed)
    flown = [log[seed] for seed in range(first_seed, first_seed + episodes)]
    figures: dict[str, float] = {}
    for number, way in enumerate(WAYS):
        statistics, notes = getattr(report, way), [episodes_of_seed[number] for episodes_of_seed in flown]
        if statistics.lengths.tolist() != [note.length for note in notes]:
            raise RuntimeError(f"the notes are not those of the {way} episodes: evaluate() flies in another order now")
        figures |= {f"{way}_{name}": value for name, value in _figures(statistics, notes).items()}
    return {**figures, "start_entropy": report.start_entropy}


def _recorded(log: Log) -> Flight:
    return Flight(gymnasium.make(ENV, disable_env_checker=True), log)


def _figures(statistics: EpisodeStatistics, notes: Sequence[Episode]) -> dict[str, float]:
    shares = {
        outcome: float(np.mean([note.outcome == outcome for note in notes]))
        for outcome in ("landed", "crashed", "timed_out")
    }
    return {
        "mean": statistics.mean,
        "std": statistics.std,
        "solved": float(statistics.solved or 0.0),
        **shares,
        "length": statistics.length,
        "engine": float(np.mean([note.engine for note in notes])),
    }
