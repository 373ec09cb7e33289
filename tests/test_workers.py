"""Worker processes: the same bits as without them, and one clear error when something goes wrong."""

import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from environments import Counting, Quitting, Sent
from helpers import assert_same_parameters, parameters_of, slow
from slow_environments import Homesick, Leans, Obeys, StaysAtHome, TellsOfClosing
from torch import nn

from grpolib import (
    A2CTrainer,
    Callback,
    GroupSampler,
    GRPOTrainer,
    MinibatchPlan,
    PPOTrainer,
    StepSampler,
    WorkerError,
    WorkerProcesses,
    as_policy,
    evaluate,
    load_policy,
    mlp,
)

TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}
PROC = Path("/proc/self/stat")

# The run-time checks make short work long, and want to be asked before the library is.
pytestmark = pytest.mark.usefixtures("without_shape_hook")
needs_proc = pytest.mark.skipif(not PROC.exists(), reason="looks for processes in /proc")


def seed_of(number):
    return np.random.SeedSequence(number, spawn_key=(1,))


def sampled(sampler, policy=None, groups=2, seed=0):
    return sampler.sample(as_policy(policy or mlp(2, 2), sampler.action_space), groups, seed_of(seed))


def assert_same_batch(batch, expected):
    for field in fields(expected):
        value, right = getattr(batch, field.name), getattr(expected, field.name)
        if field.name == "inputs":
            assert torch.equal(value.observations, right.observations)
            assert torch.equal(value.actions, right.actions)
        elif field.name == "metrics":
            assert_same_parameters(value, right)
        elif right is None:
            assert value is None, field.name
        else:
            assert value.dtype == right.dtype, field.name
            assert torch.equal(value, right), field.name


# Processes.


def state_of(process):
    """State and process group of a process, None where it is gone or only waits to be reaped."""
    try:
        state, _, group, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(group)


def living(processes):
    return [process for process in processes if state_of(process) is not None]


def members(group):
    """The living processes of a process group."""
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [process for process in found if state_of(process) == group]


def are_gone(find, seconds=5.0):
    """Whether `find` finds nothing any more within some seconds."""
    deadline = time.monotonic() + seconds
    while left := find():
        if time.monotonic() > deadline:
            return not left
        time.sleep(0.05)
    return True


def running_workers():
    """The process ids of all pools of this process."""
    return [process.pid for process in multiprocessing.active_children() if process.name.startswith("grpolib-worker")]


# The same bits on every number of workers.


class Keeps(Callback):
    """The metrics of every iteration; the timings aside, and nan as a word, since it is not equal to itself."""

    def __init__(self):
        self.metrics = []

    def on_iteration_end(self, trainer, metrics):
        self.metrics.append(
            {name: "nan" if math.isnan(value) else value for name, value in metrics.items() if name not in TIMINGS}
        )


def grpo_on(env, *sizes, iterations, group_size=3):
    def make(**keywords):
        return GRPOTrainer(mlp(*sizes), env, group_size=group_size, groups_per_step=4, **keywords)

    return make, iterations


def ppo(**keywords):
    # Two blocks of environments, eight and two; episodes are carried over from one iteration to the next.
    plan = MinibatchPlan(epochs=2, size=64)
    return PPOTrainer(mlp(4, 8, 2), "CartPole-v1", num_envs=10, steps=30, plan=plan, **keywords)


RUNS = {
    "CartPole": grpo_on("CartPole-v1", 4, 8, 2, iterations=2),
    "LunarLander": grpo_on("LunarLander-v3", 8, 8, 4, iterations=1, group_size=2),
    "Pendulum": grpo_on(lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20), 3, 8, 2, iterations=2),
    "PPO": (ppo, 4),
}


def finished(make, iterations, engine=None):
    """All that a run leaves: weights, metrics, an evaluation."""
    keeps = Keeps()
    trainer = make(seed=3, callbacks=[keeps])
    if engine is not None:
        trainer.sampler.engine = engine
    trainer.train(iterations=iterations)
    report = trainer.evaluate(episodes=9)
    return parameters_of(trainer.policy), keeps.metrics, report


@cache
def without_workers(name):
    return finished(*RUNS[name])


def assert_same_run(run, expected):
    assert_same_parameters(run[0], expected[0])
    assert run[1] == expected[1]
    for way in ("argmax", "sampled"):
        assert torch.equal(getattr(run[2], way).returns, getattr(expected[2], way).returns)
    assert str(run[2]) == str(expected[2])


@pytest.mark.parametrize("count", [slow(1), 2, slow(3)])
def test_every_number_of_workers_gives_the_same_bits(count):
    sampler = GroupSampler(Quitting, 4, workers=count)
    engine = sampler.engine  # one pool for all: it takes any number of stages and policies
    try:
        local = GroupSampler(Quitting, 4)
        policy = as_policy(Leans(), local.action_space)
        for seed, groups in [(0, 1), (0, 5), (1, 5)]:
            assert_same_batch(sampled(sampler, policy, groups, seed), sampled(local, policy, groups, seed))
        for name, run in RUNS.items():
            assert_same_run(finished(*run, engine), without_workers(name))
        assert len(running_workers()) == count
    finally:
        engine.close()
    assert running_workers() == []


@pytest.mark.slow
def test_workers_follow_the_policy_as_it_is_now():
    sampler, local = GroupSampler(Quitting, 4, workers=1), GroupSampler(Quitting, 4)
    policy = as_policy(Leans(), local.action_space)
    try:
        for change in (
            lambda: policy.train(False),
            lambda: policy.module.lean.data.mul_(-1),
            lambda: policy.train(True),
            lambda: setattr(policy.module, "lean", nn.Parameter(torch.zeros(2))),
        ):
            change()
            assert_same_batch(sampled(sampler, policy), sampled(local, policy))
        other = as_policy(mlp(2, 4, 2), local.action_space)
        assert_same_batch(sampled(sampler, other), sampled(local, other))
        assert_same_batch(sampled(sampler, policy), sampled(local, policy))
        other = as_policy(mlp(2, 2), local.action_space)
        other.lock = threading.Lock()
        with pytest.raises(TypeError, match="pickle"):
            sampled(sampler, other)
        assert running_workers() == []
    finally:
        sampler.close()


@pytest.mark.slow
def test_evaluating_with_workers(tmp_path):
    expected = evaluate(mlp(2, 2), Counting, episodes=9)
    report = evaluate(mlp(2, 2), lambda: TellsOfClosing(tmp_path), episodes=9, workers=1)
    assert str(report) == str(expected)
    assert torch.equal(report.sampled.lengths, expected.sampled.lengths)
    assert running_workers() == []
    assert len(list(tmp_path.iterdir())) == 8, "closing closes the environments, wherever they are"


# What goes wrong in a worker.


@pytest.fixture
def pool(tmp_path):
    """Makes samplers of obedient environments, and closes them."""
    made = []

    def make(count=1, timeout=120.0, env=None):
        orders = tmp_path / "orders"
        made.append(GroupSampler(env or (lambda: Obeys(orders)), 2, workers=WorkerProcesses(count, timeout=timeout)))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


def reset_seeds(groups=2, seed=0):
    """The reset seeds of the groups, as their environments see them."""
    made = []

    def factory():
        made.append(Sent(Counting()))
        return made[-1]

    sampled(GroupSampler(factory, 2), groups=groups, seed=seed)
    return made[-1].seeds


@needs_proc
@pytest.mark.slow
def test_an_error_in_a_worker_is_one_error_here(pool, tmp_path, capfd):
    sampler = pool(2)
    sampled(sampler)
    processes = running_workers()
    assert len(living(processes)) == 2
    bad = reset_seeds()[1]
    (tmp_path / "orders").write_text(f"boom {bad}")

    with pytest.raises(WorkerError) as caught:
        sampled(sampler)
    message = str(caught.value)
    assert re.match(rf"worker [01] \(process ({processes[0]}|{processes[1]})\) failed", message)
    assert "ValueError: boom" in message
    assert "Traceback (most recent call last)" in message
    assert "slow_environments.py" in message
    assert f"reset_seed={bad}" in message

    assert are_gone(lambda: living(processes))
    assert running_workers() == []
    sampler.close()
    sampler.close()

    (tmp_path / "orders").unlink()
    assert_same_batch(sampled(sampler), sampled(GroupSampler(lambda: Obeys(tmp_path / "orders"), 2)))
    fresh = running_workers()
    assert len(fresh) == 2
    assert not set(fresh) & set(processes)

    # One that dies between two calls is found by the next.
    os.kill(fresh[1], signal.SIGKILL)
    assert are_gone(lambda: living(fresh[1:]))
    with pytest.raises(WorkerError, match=rf"worker [01] \(process {fresh[1]}\) died with exit code -9"):
        sampled(sampler)
    assert are_gone(lambda: living(fresh))
    assert "Traceback" not in capfd.readouterr().err


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("die", "died with exit code -9"),
        ("leave", "died with exit code 3"),
        ("infinity", "Obeys, reset seed {seed}, step 2 gave reward inf"),
    ],
)
def test_a_worker_that_ends_or_gives_bad_data(pool, tmp_path, order, message):
    (tmp_path / "orders").write_text(f"{order} any")
    with pytest.raises(WorkerError, match=r"worker 0 \(process \d+\)") as caught:
        sampled(pool(), groups=1)
    assert message.format(seed=reset_seeds(1)[0]) in str(caught.value)
    assert f"reset_seed={reset_seeds(1)[0]}" in str(caught.value)
    assert running_workers() == []


@needs_proc
@pytest.mark.slow
def test_an_environment_that_hangs_is_given_up(pool, tmp_path):
    (tmp_path / "orders").write_text("hang any")
    sampler = pool(timeout=2.0)
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 0 \(process \d+\) did not answer in time while running") as caught:
        sampled(sampler)
    assert time.monotonic() - start < 50, "the environment sleeps for a minute: the error came after it"
    process = int(re.search(r"process (\d+)", str(caught.value)).group(1))
    assert are_gone(lambda: living([process]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "policy", "reason"),
    [(StaysAtHome, mlp(2, 2), "RuntimeError: no display"), (Counting, Homesick(), "RuntimeError: homesick")],
)
def test_what_cannot_be_built_in_a_worker(pool, capfd, env, policy, reason):
    sampler = pool(env=env)
    with pytest.raises(WorkerError, match=r"worker 0 \(process \d+\) failed") as caught:
        sampled(sampler, policy)
    assert reason in str(caught.value)
    assert str(caught.value).count("Traceback") == 1
    assert running_workers() == []
    assert "Traceback" not in capfd.readouterr().err


# What cannot be asked for.


@pytest.mark.parametrize("workers", [-1, "many", 1.5, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda workers: GroupSampler(Counting, 2, workers=workers),
        lambda workers: StepSampler(Counting, 2, 4, workers=workers),
        lambda workers: GRPOTrainer(mlp(2, 2), Counting, workers=workers),
        lambda workers: evaluate(mlp(2, 2), Counting, workers=workers),
    ],
    ids=["GroupSampler", "StepSampler", "GRPOTrainer", "evaluate"],
)
def test_numbers_of_workers_that_cannot_be(workers, make):
    with pytest.raises(ValueError, match=rf"workers is {workers!r}: give 0, a number of processes, 'auto'"):
        make(workers)


@pytest.mark.parametrize("settings", [{"count": 0}, {"count": -2}, {"count": 1, "timeout": 0.0}])
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match=r"WorkerProcesses\(.*count must be >= 1 and timeout > 0"):
        WorkerProcesses(**settings)


@pytest.mark.parametrize("workers", [2, "auto", WorkerProcesses(1)])
@pytest.mark.parametrize(
    ("trainer", "sampler"),
    [
        (GRPOTrainer, lambda: GroupSampler(Counting, 2)),
        (PPOTrainer, lambda: StepSampler(Counting, 2, 4)),
        (A2CTrainer, lambda: StepSampler(Counting, 2, 4)),
    ],
)
def test_a_ready_sampler_owns_its_workers(trainer, sampler, workers):
    with pytest.raises(ValueError, match="beside a ready sampler, which owns its workers"):
        trainer(mlp(2, 2), sampler(), workers=workers)


def test_no_process_starts_before_it_is_needed():
    sampler = GroupSampler(Counting, 2, workers=3)
    assert running_workers() == []
    sampler.close()


# Scripts as users write them.

SCRIPT = """
import multiprocessing, signal, sys
import gymnasium
from torch import nn
from grpolib import Callback, EvaluateEvery, GRPOTrainer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have switched it off

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, observations):
        return self.layer(observations)

class Announces(Callback):
    def on_iteration_end(self, trainer, metrics):
        if trainer.iteration == 2:  # inside of train, where a signal is waited with
            print("trained", *[process.pid for process in multiprocessing.active_children()], flush=True)

def main():
    short = lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)
    trainer = GRPOTrainer(Network(), short, group_size=2, groups_per_step=2, workers=int(sys.argv[1]), seed=1,
                          run_folder=sys.argv[2], callbacks=[EvaluateEvery(10**9, episodes=1), Announces()])
    trainer.train(iterations=10**6)

"""
GUARD = 'if __name__ == "__main__":\n    main()\n'


class Running:
    """A script that runs in a process group of its own, like one in a terminal; killed at the end."""

    def __init__(self, folder, workers, script=SCRIPT + GUARD):
        (folder / "script.py").write_text(script)
        self.run = folder / "run"
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "script.py"), str(workers), str(self.run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.group = self.process.pid

    def __enter__(self):
        self._safety_net = threading.Timer(120, self._kill)
        self._safety_net.start()
        return self

    def __exit__(self, *error):
        self._safety_net.cancel()
        self._kill()
        self.process.communicate()

    def wait_until_trained(self):
        """The ids of its workers."""
        line = self.process.stdout.readline()
        assert line.startswith("trained"), self.process.stderr.read()
        return [int(process) for process in line.split()[1:]]

    def wait_until_a_worker_starts(self):
        while not any("spawn_main" in self._command(process) for process in members(self.group)):
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.01)

    def errors(self):
        """What it wrote to stderr until it ended."""
        return self.process.communicate()[1]

    def _command(self, process):
        try:
            return Path(f"/proc/{process}/cmdline").read_text()
        except OSError:
            return ""

    def _kill(self):
        for process in members(self.group):
            os.kill(process, signal.SIGKILL)


def assert_ended_by_ctrl_c(script):
    errors = script.errors()
    assert errors.strip().splitlines()[-1] == "KeyboardInterrupt", errors
    assert errors.count("Traceback") == 1, errors
    assert script.process.returncode in (1, 130, -signal.SIGINT)  # 1: Python forgets the cause where code runs at exit
    assert are_gone(lambda: members(script.group))


def last_policy(script):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

    network = Network()
    return load_policy(network, script.run / "last"), parameters_of(network)


@needs_proc
@pytest.mark.slow
def test_a_script_with_workers_until_ctrl_c(tmp_path):
    with Running(tmp_path, 2) as script:
        workers = script.wait_until_trained()
        assert len(living(workers)) == 2
        os.killpg(script.group, signal.SIGINT)
        assert_ended_by_ctrl_c(script)
        information, parameters = last_policy(script)
    assert information["iteration"] >= 2
    assert all(bool(value.isfinite().all()) for value in parameters.values())
    rows = (script.run / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + information["iteration"]


@needs_proc
@pytest.mark.slow
def test_sigterm_to_parent_and_workers_lets_the_iteration_finish(tmp_path):
    with Running(tmp_path, 2) as script:
        script.wait_until_trained()
        os.killpg(script.group, signal.SIGTERM)
        assert script.errors().splitlines() == [
            "SIGTERM: the iteration is finished and everything written first; once more stops at once"
        ]
        assert script.process.returncode == 143
        assert are_gone(lambda: members(script.group))
        information, _ = last_policy(script)
    assert len((script.run / "metrics.csv").read_text().splitlines()) == 1 + information["iteration"]


@needs_proc
@pytest.mark.slow
def test_ctrl_c_while_the_workers_start(tmp_path):
    with Running(tmp_path, 1) as script:
        script.wait_until_a_worker_starts()
        os.killpg(script.group, signal.SIGINT)
        assert_ended_by_ctrl_c(script)
        information, _ = last_policy(script)
    assert information["iteration"] >= 1  # the first, unless this process had to wait for a core


@needs_proc
@pytest.mark.slow
def test_workers_leave_with_their_parent(tmp_path):
    with Running(tmp_path, 1) as script:
        assert len(living(script.wait_until_trained())) == 1
        script.process.kill()
        assert are_gone(lambda: members(script.group))


@needs_proc
@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    with Running(tmp_path, 1, SCRIPT + "main()\n") as script:
        errors = script.errors()
        assert script.process.returncode == 1
        assert "WorkerError" in errors
        assert "if __name__ == '__main__':" in errors.strip().splitlines()[-1], errors
        assert are_gone(lambda: members(script.group))
