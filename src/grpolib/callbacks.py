"""Callbacks: what happens around the iterations of a trainer."""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tqdm import tqdm

from grpolib.archive import write_text
from grpolib.evaluation import CHOOSING_SEEDS, EvaluationReport
from grpolib.functional._checks import check_whole, check_whole_or_none
from grpolib.metrics import Metrics
from grpolib.resume import BEST, CHECKPOINTS, LATEST
from grpolib.sampling.environments import EnvSource

if TYPE_CHECKING:
    from grpolib.trainer import Trainer


@runtime_checkable
class Callback(Protocol):
    """Subclass it and override what is needed; each method does nothing by default.

    With several `Ranks` every rank calls its callbacks; one whose class says `writes = True` is called on rank 0 alone.
    """

    def on_train_start(self, trainer: "Trainer") -> None:
        """`train` was called."""
        return

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> bool | None:
        """An iteration is complete; return False to stop training."""
        return None

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """`EvaluateEvery` has evaluated the policy."""
        return

    def on_train_end(self, trainer: "Trainer") -> None:
        """`train` ends, also by an exception."""
        return


class EvaluateEvery(Callback):
    """Evaluate both ways at the start and then every so many environment steps.

    Args:
        steps: Environment steps between evaluations.
        episodes: Episodes each way.
        first_seed: Default: the choosing seeds, which are not the reported ones.
        env: Where to evaluate; None takes the training environment (give it where training cuts episodes short).
    """

    def __init__(
        self,
        steps: int = 50_000,
        episodes: int = 10,
        first_seed: int = CHOOSING_SEEDS,
        env: EnvSource | None = None,
    ) -> None:
        check_whole(steps=steps, episodes=episodes, first_seed=first_seed)
        if steps < 1 or episodes < 1:
            raise ValueError(f"steps={steps} and episodes={episodes} must be >= 1")
        self.steps, self.episodes, self.first_seed, self.env = steps, episodes, first_seed, env
        self._evaluated_at = 0

    def on_train_start(self, trainer: "Trainer") -> None:
        """Evaluate the policy as it starts."""
        if trainer.num_steps == 0:
            self._evaluate(trainer)

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> None:
        """Evaluate when a multiple of `steps` was passed."""
        if trainer.num_steps // self.steps > self._evaluated_at // self.steps:
            self._evaluate(trainer)

    def state(self) -> dict[str, Any]:
        """When it last evaluated."""
        return {"evaluated_at": self._evaluated_at}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self._evaluated_at = int(state["evaluated_at"])

    def _evaluate(self, trainer: "Trainer") -> None:
        self._evaluated_at = trainer.num_steps
        report = trainer.evaluate(episodes=self.episodes, first_seed=self.first_seed, env=self.env)
        for callback in trainer.callbacks:
            callback.on_evaluation(trainer, report)


class CheckpointEvery(Callback):
    """Writes `checkpoints/<iteration>/` into the run folder, from which `resume` goes on with the same bits.

    It comes after all other callbacks, so a checkpoint knows of everything that its iteration did. The file
    `checkpoints/latest` names the last complete one: after a crash, whenever it came, that one is there. One more is
    written where training ends, also by Ctrl-C or SIGTERM.

    Args:
        iterations: Between checkpoints, >= 1.
        keep_last: How many stay, >= 1; None keeps all.
        keep_best: Write and keep one more, after the iteration whose evaluation had the best mean return by argmax;
            the file `checkpoints/best` names it.
    """

    writes = True

    def __init__(self, iterations: int = 10, *, keep_last: int | None = 3, keep_best: bool = False) -> None:
        check_whole(iterations=iterations)
        check_whole_or_none(keep_last=keep_last)
        if iterations < 1 or (keep_last is not None and keep_last < 1):
            raise ValueError(f"iterations={iterations} and keep_last={keep_last} must be >= 1")
        self.iterations, self.keep_last, self.keep_best = iterations, keep_last, keep_best
        self._complete = self._saved = 0
        self._best: int | None = None
        self._best_return = -math.inf

    def on_train_start(self, trainer: "Trainer") -> None:
        """Raise where there is no run folder, and clear away what came after the iteration that it goes on from."""
        if trainer.run_folder is None:
            raise ValueError("CheckpointEvery writes into the run folder: give the trainer run_folder=")
        self._complete = self._saved = trainer.iteration
        self._tidy(trainer.run_folder / CHECKPOINTS, trainer.iteration)
        self._name_best(trainer.run_folder / CHECKPOINTS)

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> None:
        """Save when it is time."""
        self._complete = trainer.iteration
        if trainer.iteration % self.iterations == 0 or trainer.iteration == self._best:
            self._save(trainer)

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """Look for a new best; what the policy was before its first iteration is no checkpoint."""
        if self.keep_best and trainer.iteration > 0 and report.argmax.mean > self._best_return:
            self._best, self._best_return = trainer.iteration, report.argmax.mean

    def on_train_end(self, trainer: "Trainer") -> None:
        """Save the last iteration if it is complete, callbacks and all."""
        if trainer.iteration == self._complete != self._saved:
            self._save(trainer)

    def state(self) -> dict[str, Any]:
        """The best checkpoint, and its return; None before the first."""
        return {"best": self._best, "best_return": None if self._best is None else self._best_return}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._best = None if state["best"] is None else int(state["best"])
        self._best_return = -math.inf if self._best is None else float(state["best_return"])

    def _save(self, trainer: "Trainer") -> None:
        folder = Path(trainer.run_folder or "") / CHECKPOINTS
        mine = folder / str(trainer.iteration)
        if mine.exists():  # of a run that was killed before `latest` named it, or that was set back
            shutil.rmtree(mine)
        trainer.save(mine)
        write_text(folder / LATEST, f"{trainer.iteration}\n")
        if trainer.iteration == self._best:
            self._name_best(folder)
        self._saved = trainer.iteration
        self._tidy(folder, trainer.iteration)

    def _name_best(self, folder: Path) -> None:
        """Also after a crash, or a run that was set back to before its best."""
        if (folder / str(self._best)).exists():
            write_text(folder / BEST, f"{self._best}\n")
        else:
            (folder / BEST).unlink(missing_ok=True)

    def _tidy(self, folder: Path, iteration: int) -> None:
        """Remove checkpoints that are too old, and those after `iteration`, from before a run was set back."""
        written = sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())
        kept = [number for number in written if number <= iteration][-(self.keep_last or 0) :]
        for number in set(written) - {*kept, self._best}:
            shutil.rmtree(folder / str(number))


class ProgressBar(Callback):
    """A tqdm bar on a terminal, with the numbers to watch; nothing where the output is no terminal."""

    writes = True

    def on_train_start(self, trainer: "Trainer") -> None:
        """Open the bar."""
        in_steps = trainer.target_steps is not None
        self._bar = tqdm(
            total=trainer.target_steps if in_steps else trainer.target_iterations,
            initial=trainer.num_steps if in_steps else trainer.iteration,
            unit="step" if in_steps else "iteration",
            unit_scale=in_steps,
            disable=None,
            dynamic_ncols=True,
        )
        self._in_steps = in_steps

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> None:
        """Move the bar."""
        kl = metrics.get("kl_reference", metrics.get("kl_old_k3", 0.0))
        self._bar.set_postfix_str(
            f"return {metrics['return_mean']:.3g}, entropy {metrics.get('entropy', 0.0):.2f}, KL {kl:.3f}, "
            f"clip {metrics.get('clip_fraction', 0.0):.3f}, {metrics['steps_per_second']:,.0f} steps/s",
            refresh=False,
        )
        self._bar.update((trainer.num_steps if self._in_steps else trainer.iteration) - self._bar.n)

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """A line above the bar."""
        if not self._bar.disable:
            self._bar.write(evaluation_line(trainer.num_steps, report))

    def on_train_end(self, trainer: "Trainer") -> None:
        """Close the bar."""
        self._bar.close()


class PrintEvaluations(Callback):
    """A line per evaluation, also where there is no terminal and so no progress bar."""

    def on_evaluation(self, trainer: "Trainer", report: EvaluationReport) -> None:
        """Print it, above a bar where there is one."""
        tqdm.write(evaluation_line(trainer.num_steps, report))


def evaluation_line(num_steps: int, report: EvaluationReport) -> str:
    """One line for a person."""
    solved = "" if report.argmax.solved is None else f" ({report.argmax.solved:.0%} solved)"
    return (
        f"{num_steps:>9,} steps: argmax {report.argmax.mean:7.1f}{solved}, sampled {report.sampled.mean:7.1f}, "
        f"entropy at the start {report.start_entropy:.2f}"
    )
