"""Callbacks that end training."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from grpolib.callbacks import Callback, EvaluateEvery
from grpolib.evaluation import EvaluationReport
from grpolib.functional._checks import check_choice, check_whole
from grpolib.kl_losses import K1, needs_reference
from grpolib.metrics import Metrics

if TYPE_CHECKING:
    from grpolib.trainer import Trainer

Way: TypeAlias = Literal["argmax", "sampled"]
KL: TypeAlias = Literal["kl_old_k3", "kl_reference"]


@dataclass(eq=False)
class StopAtReturn(Callback):
    """Stop once an evaluation's mean return is at least the threshold.

    An iteration is never cut: what the evaluation at the start decides takes effect after the first one. Behind
    `EvaluateEvery` in the list of callbacks it stops in the iteration of the evaluation, before it one iteration later.

    Args:
        threshold: Mean return, in reward units.
        way: Which evaluation, by the most probable action or by sample.

    Raises:
        ValueError: The threshold is not finite; or, when training starts, nothing evaluates.
    """

    threshold: float
    way: Way = "argmax"
    _reached: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold is {self.threshold}: give a finite return")
        check_choice("way", self.way, get_args(Way))

    def on_train_start(self, trainer: "Trainer") -> None:
        """Look for evaluations to decide by."""
        _check_evaluates(trainer, self)

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """The latest evaluation decides."""
        self._reached = _mean_return(report, self.way) >= self.threshold

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> bool:
        """Go on while the threshold is not reached."""
        return not self._reached

    def state(self) -> dict[str, Any]:
        """What the latest evaluation decided."""
        return {"reached": self._reached}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Decide as it did."""
        self._reached = bool(state["reached"])


@dataclass(eq=False)
class StopOnPlateau(Callback):
    """Stop once so many evaluations in a row have brought no mean return above the best one before them.

    It takes effect at the end of an iteration, as `StopAtReturn` does.

    Args:
        evaluations: How many, >= 1; for instance 10 with `EvaluateEvery(50_000)` are half a million steps.
        way: Which evaluation, by the most probable action or by sample.

    Raises:
        TypeError: `evaluations` is no whole number.
        ValueError: It is below 1; or, when training starts, nothing evaluates.
    """

    evaluations: int
    way: Way = "argmax"
    _best: float = field(default=-math.inf, init=False, repr=False)
    _since_best: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(evaluations=self.evaluations)
        if self.evaluations < 1:
            raise ValueError(f"evaluations is {self.evaluations}: it must be >= 1")
        check_choice("way", self.way, get_args(Way))

    def on_train_start(self, trainer: "Trainer") -> None:
        """Look for evaluations to decide by."""
        _check_evaluates(trainer, self)

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """Count, or begin to count again."""
        mean = _mean_return(report, self.way)
        if mean > self._best:
            self._best, self._since_best = mean, 0
        else:
            self._since_best += 1

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> bool:
        """Go on while a new best is not overdue."""
        return self._since_best < self.evaluations

    def state(self) -> dict[str, Any]:
        """The best mean return, None before the first, and the evaluations since."""
        return {"best": self._best if math.isfinite(self._best) else None, "since_best": self._since_best}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self._best = -math.inf if state["best"] is None else float(state["best"])
        self._since_best = int(state["since_best"])


@dataclass(eq=False)
class StopOnKL(Callback):
    """Stop after an iteration in which the policy has moved too far.

    The iteration is kept: this guards a run, it does not cut the epochs of one update short.

    Args:
        limit: Nats per step, > 0; the largest value with which training goes on.
        metric: "kl_old_k3", from the policy that sampled, or "kl_reference", the KL term's own estimate.

    Raises:
        ValueError: The limit is not positive; when training starts, "kl_reference" is k1, which may be negative however
            far the policy has moved; or, after an iteration, there is no such metric.
    """

    limit: float
    metric: KL = "kl_old_k3"

    def __post_init__(self) -> None:
        _check_positive("limit", self.limit)
        check_choice("metric", self.metric, get_args(KL))

    def on_train_start(self, trainer: "Trainer") -> None:
        """Refuse an estimate that need not grow with the KL; the first KL term is the one of this name."""
        term = next(filter(needs_reference, trainer.update.losses), None)
        if self.metric == "kl_reference" and isinstance(term, K1):
            raise ValueError(
                f"the kl_reference of {term} is k1, which may be negative however far the policy has moved: use K2, K3 "
                "or ExactKL, or stop by kl_old_k3"
            )

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> bool:
        """Go on while the KL is within the limit."""
        if self.metric not in metrics:
            raise ValueError(
                f"the losses {trainer.update.losses} log no {self.metric}: kl_old_k3 comes with ClippedSurrogateLoss "
                "and CISPOLoss, kl_reference with K1, K2, K3 and ExactKL"
            )
        return metrics[self.metric] <= self.limit


@dataclass(eq=False)
class TimeBudget(Callback):
    """Stop at the end of the iteration in which the time is up; each call of `train` has all of it.

    Args:
        seconds: Wall-clock seconds, > 0, with evaluations.

    Raises:
        ValueError: The time is not positive.
    """

    seconds: float
    _start: float = field(default=math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_positive("seconds", self.seconds)

    def on_train_start(self, trainer: "Trainer") -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> bool:
        """Go on while there is time."""
        return time.perf_counter() - self._start < self.seconds


def _mean_return(report: EvaluationReport, way: Way) -> float:
    return (report.argmax if way == "argmax" else report.sampled).mean


def _check_evaluates(trainer: "Trainer", callback: Callback) -> None:
    """A rule that never sees an evaluation would never stop, and nobody would know why."""
    if not any(isinstance(other, EvaluateEvery) for other in trainer.callbacks):
        raise ValueError(f"{callback} decides by evaluations, and there are none: add EvaluateEvery() to the callbacks")


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is {value}: it must be > 0")
