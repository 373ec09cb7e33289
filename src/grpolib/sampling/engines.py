"""Where rollouts run: in this process, in worker processes, or on a Ray cluster.

A stage says what a job needs (environments, say) and how it is done; an engine builds it wherever jobs run.
The unit of work is a whole group with the seeds of its own, so a batch has the same bits on every engine.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from grpolib.policies import ActingPolicy
from grpolib.sampling.processes import ProcessEngine, WorkerProcesses, available_cores
from grpolib.sampling.ray_actors import RayEngine, RayWorkers
from grpolib.sampling.rollout import one_torch_thread

Run: TypeAlias = Callable[[ActingPolicy, Any], Any]
"""Does one job with the policy as it is now."""


@runtime_checkable
class Stage(Protocol):
    """A description of work that can travel to another process."""

    def build(self) -> Run:
        """Make what the jobs need; called once wherever jobs run."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Runs jobs; results come in the order of the jobs."""

    def map(self, stage: Stage, policy: ActingPolicy, jobs: Sequence[Any], *, pinned: bool = False) -> list[Any]:
        """Do the jobs with the policy's present weights.

        Args:
            stage: Built once per place and object, and kept.
            policy: Its weights are taken over once per call.
            jobs: One argument each.
            pinned: Job k always runs in the same place: for stages that keep state from call to call.
        """
        ...

    def close(self) -> None:
        """Release processes and what the stages have built; may be called twice."""
        ...


Workers: TypeAlias = int | Literal["auto"] | WorkerProcesses | RayWorkers
"""0 for this process, a number of worker processes, "auto" for one per core, or the settings of workers."""


def make_engine(workers: Workers) -> Engine:
    """The engine that `workers` names.

    Raises:
        ValueError: A negative number, or another word than "auto".
        ImportError: `RayWorkers` without Ray.
    """
    if workers == "auto":
        cores = available_cores()
        workers = 0 if cores == 1 else cores
    if isinstance(workers, int) and workers >= 0:
        return InProcessEngine() if workers == 0 else ProcessEngine(WorkerProcesses(workers))
    if isinstance(workers, WorkerProcesses):
        return ProcessEngine(workers)
    if isinstance(workers, RayWorkers):
        return RayEngine(workers)
    raise ValueError(
        f"workers is {workers!r}: give 0, a number of processes, 'auto', WorkerProcesses(...) or RayWorkers(...)"
    )


class InProcessEngine:
    """Runs jobs one after the other, here."""

    def __init__(self) -> None:
        self._built: dict[int, tuple[Stage, Run]] = {}

    def map(self, stage: Stage, policy: ActingPolicy, jobs: Sequence[Any], *, pinned: bool = False) -> list[Any]:
        """See `Engine.map`."""
        if id(stage) not in self._built:
            self._built[id(stage)] = (stage, stage.build())
        _, run = self._built[id(stage)]
        with one_torch_thread():
            return [run(policy, job) for job in jobs]

    def close(self) -> None:
        """Close what the stages have built."""
        for _, run in self._built.values():
            close_run(run)
        self._built = {}


def close_run(run: Run) -> None:
    """Close a built stage, where it has something to close."""
    close = getattr(run, "close", None)
    if close is not None:
        close()
