"""Schedules: what changes while a run goes on; called with the trainer before each iteration."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from grpolib.functional._checks import check_number, check_whole_or_none

if TYPE_CHECKING:
    from grpolib.trainer import Trainer

Schedule: TypeAlias = "Callable[[Trainer], None]"


@dataclass(frozen=True)
class Linear:
    """A straight line from `start` to `end` over a horizon of its own, then `end`.

    The value holds for a whole iteration: with 4 iterations from 0.1 to 0 it is 0.1, 0.075, 0.05, 0.025. Several
    calls of `train` go along the same line as one.

    Args:
        start: Value of the first iteration.
        end: Value at the horizon and after it.
        total_steps: Horizon in environment steps; give this one or
        iterations: the horizon in iterations.

    Raises:
        ValueError: Neither or both horizons, or one below 1.
    """

    start: float
    end: float
    total_steps: int | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        if (self.total_steps is None) == (self.iterations is None):
            raise ValueError(f"{self}: give a horizon, either total_steps= or iterations=")
        check_whole_or_none(total_steps=self.total_steps, iterations=self.iterations)
        for name, value in (("start", self.start), ("end", self.end)):
            check_number(name, value)
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}: give a finite number")
        if (self.total_steps or self.iterations or 0) < 1:
            raise ValueError(f"{self}: the horizon must be >= 1")

    def __call__(self, trainer: "Trainer") -> float:
        """The value in the trainer's present iteration."""
        if self.total_steps is not None:
            progress = trainer.num_steps / self.total_steps
        else:
            progress = (trainer.iteration - 1) / (self.iterations or 1)
        return self.start + (self.end - self.start) * min(progress, 1.0)


@dataclass(frozen=True)
class LearningRate:
    """Sets the learning rate of every parameter group.

    Args:
        value: From the trainer to the rate, for instance `Linear(3e-4, 0.0, total_steps=2_000_000)`.
    """

    value: Callable[["Trainer"], float]

    def __call__(self, trainer: "Trainer") -> None:
        """Set it."""
        for group in trainer.optimizer.param_groups:
            group["lr"] = self.value(trainer)


def check_learning_rates(optimizer: torch.optim.Optimizer) -> None:
    """Raise for a rate whose step would leave no policy: NaN, infinite or negative."""
    for group in optimizer.param_groups:
        if not 0 <= float(group["lr"]) < math.inf:
            raise ValueError(f"the learning rate is {float(group['lr'])}: give a finite number of at least 0")


@dataclass(frozen=True)
class LossSetting:
    """Sets one field of the losses of one type.

    Args:
        loss: The type, a dataclass, for instance `EntropyBonus`.
        name: The field, for instance "coefficient".
        value: From the trainer to the field's value.
    """

    loss: type[Any]
    name: str
    value: Callable[["Trainer"], float]

    def __call__(self, trainer: "Trainer") -> None:
        """Set it.

        Raises:
            ValueError: The trainer has no loss of that type.
        """
        if not any(isinstance(loss, self.loss) for loss in trainer.update.losses):
            raise ValueError(
                f"no {self.loss.__name__} among the losses {trainer.update.losses}, so nothing to schedule"
            )
        value = self.value(trainer)
        trainer.update.losses = [self._changed(loss, value) for loss in trainer.update.losses]

    def _changed(self, loss: Any, value: float) -> Any:
        return replace(loss, **{self.name: value}) if isinstance(loss, self.loss) else loss
