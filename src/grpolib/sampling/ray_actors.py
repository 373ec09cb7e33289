"""Workers on a Ray cluster: whole groups each, weights through the object store, one message per group."""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from grpolib.policies import ActingPolicy
from grpolib.sampling.processes import WorkerError, travelling_copy

logger = logging.getLogger(__name__)

LOSSES = 3
"""Actors that one job may lose before it is taken for their killer."""


@dataclass(frozen=True)
class RayWorkers:
    """Settings of workers on a Ray cluster; needs the extra `ray`.

    Ray is the caller's: `ray.init(address="auto")` before the first batch joins a cluster; without it Ray starts on
    this machine, or joins the cluster that RAY_ADDRESS names.

    Args:
        num_workers: Actors, >= 1.
        timeout: Seconds that one job (a group of episodes) may take, the wait for a free place in the cluster
            included, before the workers are given up.
        resources: Options of each actor as `ray.remote` takes them, for instance {"num_cpus": 2}; one CPU if empty.
    """

    num_workers: int
    timeout: float = 600.0
    resources: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_workers < 1 or not self.timeout > 0:
            raise ValueError(f"{self}: num_workers must be >= 1 and timeout > 0")


class RayEngine:
    """Runs jobs on Ray actors, each with a copy of the policy; see `Engine`.

    An actor that is lost is replaced, and its job run again with the same seeds: the results are the same. A job
    that raises, hangs, or loses actor after actor closes the engine with one error.

    Raises:
        ImportError: Ray is not installed.
    """

    def __init__(self, settings: RayWorkers) -> None:
        self._ray = _ray()
        self._settings = settings
        self._actors: list[Any] = []
        self._stages: list[tuple[Any, Any]] = []
        self._policy: ActingPolicy | None = None
        self._definition: Any = None
        self._version = 0

    def map(self, stage: Any, policy: ActingPolicy, jobs: Sequence[Any], *, pinned: bool = False) -> list[Any]:
        """See `Engine.map`.

        Raises:
            WorkerError: A job raised or took longer than the timeout; or a worker was lost again and again, or with
                the state of pinned jobs.
        """
        try:
            work = self._work(self._stage_number(stage), policy)
            if not self._actors:
                self._actors = [self._new_actor() for _ in range(self._settings.num_workers)]
            return self._run(work, jobs, pinned)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the actors; Ray itself goes on. May be called twice."""
        actors, self._actors = self._actors, []
        self._stages, self._policy, self._definition = [], None, None
        for actor in actors if self._ray.is_initialized() else ():
            self._ray.kill(actor)

    def _new_actor(self) -> Any:
        options = {"num_cpus": 1, **self._settings.resources}
        return self._ray.remote(_Actor).options(**options).remote()

    def _stage_number(self, stage: Any) -> int:
        for number, (known, _) in enumerate(self._stages):
            if known is stage:
                return number
        self._stages.append((stage, self._ray.put(stage)))
        return len(self._stages) - 1

    def _work(self, stage: int, policy: ActingPolicy) -> "_Work":
        """Put the weights where the actors find them, once per call."""
        if policy is not self._policy:
            self._definition = self._ray.put(travelling_copy(policy))
            self._policy = policy
        self._version += 1
        state = {name: value.detach().cpu() for name, value in policy.state_dict().items()}
        modes = [module.training for module in policy.modules()]
        return _Work(self._version, stage, self._stages[stage][1], self._definition, self._ray.put((state, modes)))

    def _run(self, work: "_Work", jobs: Sequence[Any], pinned: bool) -> list[Any]:
        """Keep every actor busy until all jobs are done."""
        everyone = deque(range(len(jobs)))
        places = range(len(self._actors))
        left = [deque(range(place, len(jobs), len(places))) if pinned else everyone for place in places]
        results: dict[int, Any] = {}
        busy: dict[Any, tuple[int, int, float]] = {}
        lost = [0] * len(jobs)

        def give(place: int, job: int) -> None:
            answer = self._actors[place].run.remote(work, jobs[job])
            busy[answer] = (place, job, time.monotonic() + self._settings.timeout)

        for place in places:
            if left[place]:
                give(place, left[place].popleft())
        while busy:
            answer = self._next_answer(busy, jobs)
            place, job, _ = busy.pop(answer)
            if self._received(answer, job, results, f"running {jobs[job]}"):
                if left[place]:
                    give(place, left[place].popleft())
                continue
            lost[job] += 1
            if pinned or lost[job] == LOSSES:
                raise WorkerError(_explained(place, jobs[job], pinned))
            logger.warning(
                "Ray worker %d was lost while running %s: it is replaced, and the job runs again", place, jobs[job]
            )
            self._actors[place] = self._new_actor()
            give(place, job)
        return [results[k] for k in range(len(jobs))]

    def _next_answer(self, busy: Mapping[Any, tuple[int, int, float]], jobs: Sequence[Any]) -> Any:
        until, place, job = min((until, place, job) for place, job, until in busy.values())
        ready, _ = self._ray.wait(list(busy), timeout=max(0.0, until - time.monotonic()))
        if not ready:
            raise WorkerError(
                f"Ray worker {place} did not answer in time while running {jobs[job]}: it hangs, the "
                f"cluster has no free place ({dict(self._settings.resources) or 'one CPU each'}), or timeout is too "
                "short"
            )
        return ready[0]

    def _received(self, answer: Any, job: int, results: dict[int, Any], doing: str) -> bool:
        """Take in an answer; False where the actor, or the node that held the answer, is lost."""
        try:
            results[job] = self._ray.get(answer)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError):
            return False
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"a Ray worker failed while {doing}:\n{error}") from error
        return True


class _Work(NamedTuple):
    """What the jobs of one call share; an actor that is new reads all of it, one that knows a part only the rest."""

    version: int
    stage: int
    stage_reference: Any
    definition: Any
    weights: Any


class _Actor:
    """The worker's side."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._runs: dict[int, Any] = {}
        self._definition: Any = None
        self._policy: Any = None
        self._version = 0

    def run(self, work: _Work, job: Any) -> Any:
        """Do one job with the weights of this call."""
        import ray

        if work.definition != self._definition:
            self._definition, self._policy = work.definition, ray.get(work.definition)
        if work.version != self._version:
            state, modes = ray.get(work.weights)
            self._policy.load_state_dict(state)
            for module, training in zip(self._policy.modules(), modes, strict=True):
                module.training = training
            self._version = work.version
        if work.stage not in self._runs:
            stage: Any = ray.get(work.stage_reference)
            self._runs[work.stage] = stage.build()
        return self._runs[work.stage](self._policy, job)


def _explained(place: int, job: Any, pinned: bool) -> str:
    if pinned:
        return f"Ray worker {place} was lost with its open episodes while running {job}: resume from a checkpoint"
    return f"{LOSSES} Ray workers were lost while running {job}: it may use too much memory, or end its process"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError('RayWorkers needs Ray: pip install "grpolib[ray]"') from error
    return ray
