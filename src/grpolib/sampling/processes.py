"""Worker processes: whole groups each, weights in shared memory, one message per group."""

import copy
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any, cast

import cloudpickle
import torch
import torch.multiprocessing  # pyright: ignore[reportUnusedImport]  its import lets tensors travel through pipes as shared memory
from torch import Tensor, nn

from grpolib.policies import ActingPolicy

STARTING = 120.0
"""Seconds that a new process may take to import what it needs."""
LEAVING = 1.0
"""Seconds that processes have to close their environments."""
HELD_BACK = {signal.SIGINT, signal.SIGTERM}
"""Signals that may reach a whole group of processes (Ctrl-C, a scheduler): the parent alone decides what they do."""


@dataclass(frozen=True)
class WorkerProcesses:
    """Settings of a pool of worker processes on this machine.

    Args:
        count: Processes, >= 1.
        timeout: Seconds that one job (a group of episodes) may take before the pool is given up.
    """

    count: int
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.count < 1 or not self.timeout > 0:
            raise ValueError(f"{self}: count must be >= 1 and timeout > 0")


class WorkerError(RuntimeError):
    """A job failed in a worker process; the pool is closed."""


def travelling_copy(policy: ActingPolicy) -> nn.Module:
    """A copy on the CPU, to send to a worker; every policy is a module, which a protocol cannot say."""
    return cast(nn.Module, copy.deepcopy(policy)).cpu()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessEngine:
    """Runs jobs in spawned processes, each with a copy of the policy; see `Engine`.

    Stages and policies travel by cloudpickle, so lambdas and local classes will do. Weights lie in shared
    memory; a call copies them there once. Of what may change in a policy, parameters, buffers and
    train() / eval() are followed; a plain attribute stays as it was when the policy was first sent. A worker
    that raises, hangs or dies closes the pool with one error.
    """

    def __init__(self, settings: WorkerProcesses) -> None:
        self._settings = settings
        self._workers: list[_Worker] = []
        self._stages: list[Any] = []
        self._policy: ActingPolicy | None = None
        self._weights: dict[str, Tensor] = {}
        self._modes: list[bool] = []

    def map(self, stage: Any, policy: ActingPolicy, jobs: Sequence[Any], *, pinned: bool = False) -> list[Any]:
        """See `Engine.map`.

        Raises:
            WorkerError: A job raised, a worker died, or a job took longer than the timeout.
        """
        try:
            self._start()
            self._share(policy)
            return self._run(self._stage_number(stage), jobs, pinned)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes; may be called twice."""
        workers, self._workers = self._workers, []
        self._stages, self._policy, self._weights = [], None, {}
        for worker in workers:
            worker.connection.close()
        deadline = time.monotonic() + LEAVING
        for worker in workers:
            worker.end(deadline - time.monotonic())

    def _start(self) -> None:
        if not self._workers:
            _check_main_guard()
            self._workers = [_Worker(number) for number in range(self._settings.count)]
            for worker in self._workers:
                worker.receive(STARTING, "starting")

    def _share(self, policy: ActingPolicy) -> None:
        """Copy the policy's weights to where the workers read them."""
        state = policy.state_dict()
        if policy is not self._policy:
            self._weights = {name: value.detach().cpu().clone().share_memory_() for name, value in state.items()}
            definition = cloudpickle.dumps(travelling_copy(policy))
            for worker in self._workers:
                worker.send(("policy", definition, self._weights))
            self._policy, self._modes = policy, []
        for name, value in state.items():
            self._weights[name].copy_(value)
        modes = [module.training for module in policy.modules()]
        if modes != self._modes:
            for worker in self._workers:
                worker.send(("modes", modes))
            self._modes = modes

    def _stage_number(self, stage: Any) -> int:
        for number, known in enumerate(self._stages):
            if known is stage:
                return number
        self._stages.append(stage)
        definition = cloudpickle.dumps(stage)
        for worker in self._workers:
            worker.send(("stage", len(self._stages) - 1, definition))
        return len(self._stages) - 1

    def _run(self, stage: int, jobs: Sequence[Any], pinned: bool) -> list[Any]:
        """Keep every worker busy until all jobs are done."""
        everyone = deque(range(len(jobs)))
        left = [
            deque(range(number, len(jobs), len(self._workers))) if pinned else everyone
            for number in range(len(self._workers))
        ]
        results: dict[int, Any] = {}
        busy: dict[_Worker, tuple[int, float]] = {}

        def give_next(worker: "_Worker") -> None:
            if left[worker.number]:
                job = left[worker.number].popleft()
                worker.send(("job", stage, jobs[job]))
                busy[worker] = (job, time.monotonic() + self._settings.timeout)

        for worker in self._workers:
            give_next(worker)
        while busy:
            deadline = min(until for _, until in busy.values())
            wait([worker.connection for worker in busy], max(0.0, deadline - time.monotonic()))
            for worker, (job, until) in list(busy.items()):
                if worker.connection.poll() or time.monotonic() > until:
                    results[job] = worker.receive(0.0, f"running {jobs[job]}")
                    del busy[worker]
                    give_next(worker)
        return [results[k] for k in range(len(jobs))]


class _Worker:
    """The parent's side of one process."""

    def __init__(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True, name=f"grpolib-worker-{number}")
        with _signals_held_back():
            self.process.start()
        theirs.close()
        # At this process's end multiprocessing sends SIGTERM and waits, which would be for ever.
        self._kill_at_exit = Finalize(self, self.process.kill, exitpriority=0)

    def receive(self, timeout: float, doing: str) -> Any:
        """The worker's answer, or one error that says what happened to it."""
        who = f"worker {self.number} (process {self.process.pid})"
        if not self.connection.poll(timeout):
            raise WorkerError(
                f"{who} did not answer in time while {doing}: an environment hangs, or timeout is too short"
            )
        try:
            kind, answer = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died(doing) from error
        if kind == "error":
            raise WorkerError(f"{who} failed while {doing}:\n{answer}")
        return answer

    def send(self, message: Any) -> None:
        """Send, or say that there is nobody to send to."""
        try:
            self.connection.send(message)
        except ConnectionError as error:
            raise self._died("waiting for work") from error

    def _died(self, doing: str) -> WorkerError:
        self.process.join(5)
        who = f"worker {self.number} (process {self.process.pid})"
        hint = " (does the script start training outside `if __name__ == '__main__':`?)" * (doing == "starting")
        return WorkerError(f"{who} died with exit code {self.process.exitcode} while {doing}{hint}")

    def end(self, timeout: float) -> None:
        """Wait until it has left, which a closed connection asks for, or make it."""
        self._kill_at_exit.cancel()
        self.process.join(max(0.0, timeout))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


@contextmanager
def _signals_held_back() -> Generator[None, None, None]:
    """A new process inherits that signals have to wait, from its first moment on; one for this process waits too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_main_guard() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "this script starts worker processes while it is being imported by one: put what it runs under "
            "`if __name__ == '__main__':`"
        )


def _serve(connection: Connection) -> None:
    """The worker's loop; ends when the parent closes the pipe or is gone."""
    for number in HELD_BACK:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    runs: dict[int, Any] = {}
    policy: Any = None
    weights: dict[str, Tensor] = {}
    connection.send(("ready", None))
    while True:
        try:
            kind, *content = connection.recv()
        except (EOFError, OSError):
            for run in runs.values():
                if hasattr(run, "close"):
                    run.close()
            return
        try:
            if kind == "policy":
                definition, weights = content
                policy = cloudpickle.loads(definition)
            elif kind == "modes":
                for module, training in zip(policy.modules(), content[0], strict=True):
                    module.training = training
            elif kind == "stage":
                number, definition = content
                runs[number] = cloudpickle.loads(definition).build()
            else:
                number, job = content
                policy.load_state_dict(weights)
                connection.send(("done", runs[number](policy, job)))
        except (BrokenPipeError, ConnectionError):
            return
        except BaseException:
            with suppress(BrokenPipeError, ConnectionError):
                connection.send(("error", traceback.format_exc()))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
