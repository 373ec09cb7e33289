"""Where the numbers go."""

import csv
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from grpolib.callbacks import Callback
from grpolib.checkpoint import save_policy, write_json
from grpolib.evaluation import EvaluationReport
from grpolib.metrics import Metrics

if TYPE_CHECKING:
    from grpolib.trainer import Trainer


@runtime_checkable
class Logger(Protocol):
    """Takes rows of numbers."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Write one row; the names are the same in every row."""
        ...

    def close(self) -> None:
        """Release the file; `log` opens it again."""
        ...


def new_file(path: str | os.PathLike[str]) -> Path:
    """The path, where nothing is yet."""
    if os.path.exists(path):
        raise FileExistsError(f"{path} exists: give another path, nothing is overwritten")
    return Path(path)


class CSVLogger:
    """A CSV file with a header; every row is flushed, and logging after `close` goes on where it stopped.

    A name that a row lacks stays empty; a new one becomes a column, empty in the rows before.

    Raises:
        FileExistsError: The file is there already.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = new_file(path)
        self._file: Any = None
        self._columns: list[str] = []

    @classmethod
    def reopened(cls, path: str | os.PathLike[str], iteration: int) -> "CSVLogger":
        """Go on in a file after the rows up to `iteration`; later ones, and one written by half, are dropped."""
        before = Path(path)
        logger = cls.__new__(cls)
        logger._path, logger._file, logger._columns = before, None, []
        if before.exists():
            whole = before.read_bytes().decode().rpartition("\n")[0]
            table = csv.DictReader(whole.splitlines())
            if "iteration" not in (table.fieldnames or ["iteration"]):
                raise ValueError(f"{before} is damaged (no column iteration): move it elsewhere, then resume again")
            rows = [row for row in table if (row["iteration"] or "").isdecimal() and int(row["iteration"]) <= iteration]
            logger._columns = list(table.fieldnames or [])
            logger._write(rows)
        return logger

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._add_columns(new)
        if self._file is None:
            self._file = self._path.open("a", newline="")
        csv.DictWriter(self._file, self._columns, restval="").writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_columns(self, names: list[str]) -> None:
        self.close()
        rows = []
        if self._columns:
            with self._path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        self._columns += names
        self._write(rows)

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The whole file anew."""
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(temporary, self._path)


class RunFolder(Callback):
    """Writes a run: config.json, metrics.csv, evaluations.csv, and the best and last policy.

    Args:
        folder: Must not exist, or be empty; nothing is ever overwritten.
        config: What config.json holds.

    Raises:
        FileExistsError: The folder has something in it.
    """

    writes = True

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
        self.path = Path(folder)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise FileExistsError(
                f"run folder {self.path} exists and is not empty: give another, nothing is overwritten"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", config)
        self._metrics = CSVLogger(self.path / "metrics.csv")
        self._evaluations = CSVLogger(self.path / "evaluations.csv")
        self._best = float("-inf")

    @classmethod
    def reopened(cls, folder: str | os.PathLike[str], iteration: int) -> "RunFolder":
        """Go on in a run folder after `iteration`; rows of later ones are dropped."""
        run = cls.__new__(cls)
        run.path = Path(folder)
        run._metrics = CSVLogger.reopened(run.path / "metrics.csv", iteration)
        run._evaluations = CSVLogger.reopened(run.path / "evaluations.csv", iteration)
        run._best = float("-inf")
        return run

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> None:
        """A row of metrics.csv."""
        self._metrics.log(metrics)

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """A row of evaluations.csv, and the policy: as the last, and as the best where its argmax return is that.

        An error in the middle of a later iteration leaves no complete policy, so the last one is written here, too.
        """
        row = {"iteration": trainer.iteration, "num_steps": trainer.num_steps, **report.as_row()}
        self._evaluations.log(row)
        self._save_last(trainer)
        if report.argmax.mean > self._best:
            self._best = report.argmax.mean
            save_policy(trainer.policy, self.path / "best", **row)

    def on_train_end(self, trainer: "Trainer") -> None:
        """Write the last complete iteration's policy and close the files."""
        if not trainer.is_mid_iteration:
            self._save_last(trainer)
        self._metrics.close()
        self._evaluations.close()

    def state(self) -> dict[str, Any]:
        """The best argmax return so far."""
        return {"best": self._best if math.isfinite(self._best) else None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._best = float("-inf") if state["best"] is None else float(state["best"])

    def _save_last(self, trainer: "Trainer") -> None:
        save_policy(trainer.policy, self.path / "last", iteration=trainer.iteration, num_steps=trainer.num_steps)
