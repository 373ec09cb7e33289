"""More places for the numbers of a run, and the callback that sends them there."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from grpolib.callbacks import Callback
from grpolib.evaluation import EvaluationReport
from grpolib.functional._checks import check_choice
from grpolib.loggers import Logger, new_file
from grpolib.metrics import Metrics

if TYPE_CHECKING:
    from grpolib.trainer import Trainer

Content: TypeAlias = Literal["everything", "metrics", "evaluations"]


class LogTo(Callback):
    """Sends rows to loggers: one per iteration with its metrics, one per evaluation with its report.

    Every row has `iteration` and `num_steps`, and the names of the two kinds differ, so both fit one logger.

    Args:
        loggers: Any `Logger`, one at least; closed when training ends and opened again when it goes on.
        content: "everything", "metrics" or "evaluations"; give one `LogTo` each for separate files.

    Raises:
        TypeError: No logger, or one that has no `log` and `close`.
        ValueError: Another content.
    """

    writes = True

    def __init__(self, *loggers: Logger, content: Content = "everything") -> None:
        for logger in loggers:
            if not isinstance(logger, Logger):
                raise TypeError(f"{logger!r} has no log(row) and close(): give a Logger, such as CSVLogger(path)")
        if not loggers:
            raise TypeError("LogTo() goes nowhere: give it a Logger, such as CSVLogger(path)")
        check_choice("content", content, get_args(Content))
        self.loggers, self.content = loggers, content

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> None:
        """A row of metrics."""
        if self.content != "evaluations":
            self._log(metrics)

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """A row of an evaluation, both ways."""
        if self.content != "metrics":
            self._log({"iteration": trainer.iteration, "num_steps": trainer.num_steps, **report.as_row()})

    def on_train_end(self, trainer: "Trainer") -> None:
        """Close every logger."""
        for logger in self.loggers:
            logger.close()

    def _log(self, row: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.log(row)


class JSONLinesLogger:
    """A file with one JSON object a line, flushed at once; logging after `close` goes on where it stopped.

    Rows may differ in their names. JSON has no NaN and no infinity: they become null, which
    `pandas.read_json(path, lines=True)` reads as NaN.

    Raises:
        FileExistsError: The file is there already.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = new_file(path)
        self._file: IO[str] | None = None

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a line."""
        line = json.dumps({name: _without_nan(value) for name, value in row.items()}, allow_nan=False)
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardLogger:
    """Scalars for TensorBoard, over `num_steps`, or over the number of the row where it has none.

    Needs the extra `tensorboard`. What is no number, as a share of solved episodes that has no threshold, is left out.

    Args:
        folder: Must not exist, or be empty; look at it with `tensorboard --logdir`.

    Raises:
        FileExistsError: The folder has something in it: TensorBoard would draw two runs as one.
        ImportError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise FileExistsError(f"{self._folder} exists and is not empty: give another, nothing is overwritten")
        self._writer = _summary_writer(self._folder)
        self._rows = 0

    def log(self, row: Mapping[str, Any]) -> None:
        """Add a point to each curve."""
        if self._writer is None:
            self._writer = _summary_writer(self._folder)
        step = row.get("num_steps", self._rows)
        for name, value in row.items():
            if name != "num_steps" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()
        self._rows += 1

    def close(self) -> None:
        """Close the file; `log` begins another one in the same folder, which TensorBoard reads as one run."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbLogger:
    """Scalars for Weights & Biases, over `num_steps`, or over the number of the row where it has none.

    Needs the extra `wandb`. Nothing leaves the machine with `mode="offline"`; `wandb sync` sends it later.

    Args:
        settings: Of `wandb.init`: `project`, `name`, `dir`, `mode` and so on.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._run: Any = self._started()
        self._rows = 0

    def log(self, row: Mapping[str, Any]) -> None:
        """Add a point to each curve; an evaluation joins the iteration of the same step."""
        if self._run is None:
            self._run = self._started()
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        self._run.log(numbers, step=row.get("num_steps", self._rows))
        self._rows += 1

    def close(self) -> None:
        """Finish the run; `log` resumes it."""
        if self._run is not None:
            self._settings |= {"id": self._run.id, "resume": "allow"}
            self._run.finish()
            self._run = None

    def _started(self) -> Any:
        try:
            import wandb
        except ImportError as error:
            raise ImportError('WandbLogger needs Weights & Biases: pip install "grpolib[wandb]"') from error
        return wandb.init(**self._settings)


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError('TensorBoardLogger needs TensorBoard: pip install "grpolib[tensorboard]"') from error
    return SummaryWriter(folder)


def _without_nan(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
