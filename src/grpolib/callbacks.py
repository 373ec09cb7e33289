"""Callbacks: what happens around the iterations of a trainer."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tqdm import tqdm

from grpolib.evaluation import CHOOSING_SEEDS, EvaluationReport
from grpolib.functional._checks import check_whole
from grpolib.metrics import Metrics
from grpolib.sampling.environments import EnvSource

if TYPE_CHECKING:
    from grpolib.trainer import Trainer


@runtime_checkable
class Callback(Protocol):
    """Subclass it and override what is needed; each method does nothing by default."""

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
        self._done = 0

    def on_train_start(self, trainer: "Trainer") -> None:
        """Evaluate the policy as it starts."""
        if trainer.num_steps == 0:
            self._evaluate(trainer)

    def on_iteration_end(self, trainer: "Trainer", metrics: Metrics) -> None:
        """Evaluate when a multiple of `steps` was passed."""
        if trainer.num_steps // self.steps > self._done:
            self._evaluate(trainer)

    def _evaluate(self, trainer: "Trainer") -> None:
        self._done = trainer.num_steps // self.steps
        report = trainer.evaluate(episodes=self.episodes, first_seed=self.first_seed, env=self.env)
        for callback in trainer.callbacks:
            callback.on_evaluation(trainer, report)


class ProgressBar(Callback):
    """A tqdm bar on a terminal, with the numbers to watch; nothing where the output is no terminal."""

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


def evaluation_line(num_steps: int, report: EvaluationReport) -> str:
    """One line for a person."""
    solved = "" if report.argmax.solved is None else f" ({report.argmax.solved:.0%} solved)"
    return (
        f"{num_steps:>9,} steps: argmax {report.argmax.mean:7.1f}{solved}, sampled {report.sampled.mean:7.1f}, "
        f"entropy at the start {report.start_entropy:.2f}"
    )
