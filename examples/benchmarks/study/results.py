"""Where finished runs are kept: three CSV files, which say what is done and from which the report is made.

runs.csv has a line per finished run and is written last: a run is done when its line stands there.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from study import outcomes
from study.lines import Line, add_once, numbered, read, read_runs, replace
from study.rows import Pair

FIRST = ("row", "seed", "steps", "argmax_mean", "sampled_mean", "argmax_solved", "sampled_solved", "start_entropy")
RUN_COLUMNS = (
    *FIRST,
    *(name for name in outcomes.COLUMNS if name not in FIRST),
    "best_steps",
    *(f"best_{name}" for name in outcomes.COLUMNS),
    "iterations",
    "kl_reference_median",
    "kl_reference_max",
    "kl_old_median",
    "kl_old_max",
    "clip_fraction_median",
    "clip_fraction_max",
    "group_return_std",
    "degenerate_fraction_max",
    "near_degenerate_fraction_max",
    "explained_variance",
    "seconds",
    "grpolib",
    "commit",
    "torch",
)
CURVE_COLUMNS = ("row", "seed", "num_steps", "argmax_mean", "sampled_mean", "start_entropy")
PROGRESS_COLUMNS = ("row", "seed", "share", "num_steps", *outcomes.COLUMNS)


class Results:
    """The files of a folder.

    Args:
        folder: Made by the first run that is added.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self) -> list[dict[str, Any]]:
        """A line per finished run.

        Raises:
            ValueError: A run that stands there twice, as after a merge.
        """
        return read_runs(self.folder / "runs.csv", RUN_COLUMNS)

    def curves(self) -> list[dict[str, Any]]:
        """The evaluations of the finished runs."""
        return self._of_finished("curves.csv", CURVE_COLUMNS)

    def progress(self) -> list[dict[str, Any]]:
        """The snapshots of the finished runs, each from the same starts."""
        return self._of_finished("progress.csv", PROGRESS_COLUMNS)

    def finished(self) -> set[Pair]:
        """Rows and seeds that are done."""
        return {(line["row"], line["seed"]) for line in self.runs()}

    def add(self, run: Line, curve: Iterable[Line], progress: Iterable[Line]) -> bool:
        """Add a finished run; False, and nothing written, where it is there already.

        A last line that a crash left half-written is taken away first.

        Raises:
            ValueError: A line whose names are not the file's columns, or a file that does not read.
        """

        def before() -> None:
            replace(self.folder / "curves.csv", CURVE_COLUMNS, curve)
            replace(self.folder / "progress.csv", PROGRESS_COLUMNS, progress)

        return add_once(self.folder / "runs.csv", RUN_COLUMNS, run, before=before)

    def _of_finished(self, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        finished = self.finished()
        lines = numbered(read(self.folder / name, columns), columns)
        return [line for line in lines if (line["row"], line["seed"]) in finished]
