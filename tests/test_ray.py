"""Workers on Ray: the same bits as in this process, also where an actor is lost on the way."""

import math
import os
import signal
import time
from pathlib import Path

import environments  # noqa: F401  Box2D, imported with its warnings off
import gymnasium
import numpy as np
import pytest
import torch
from helpers import assert_same_parameters, parameters_of

from grpolib import (
    Callback,
    EvaluateEvery,
    GroupSampler,
    GRPOTrainer,
    MinibatchPlan,
    RayWorkers,
    StepSampler,
    WorkerError,
    as_policy,
    mlp,
)
from grpolib.sampling import ray_actors
from grpolib.text.rewards import OnWorkers, score

ray = pytest.importorskip("ray", reason="needs the extra ray")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("without_shape_hook"),
    pytest.mark.filterwarnings("default::FutureWarning:ray"),
]
TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A cluster of two CPUs on this machine, and the proof that nothing of it is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # actors import this file
        started = ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100_000_000,
            configure_logging=False,
            log_to_driver=False,
        )
    yield
    ray.shutdown()
    deadline = time.monotonic() + 20
    while left := processes_of(started.address_info["session_dir"]):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def processes_of(session):
    """Living processes that were started for a Ray session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, state = (folder / "cmdline").read_text(), (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if session in line and state != "Z":
            found.append(line.replace("\0", " "))
    return found


@pytest.fixture
def sampler_on():
    made = []

    def make(workers, env=None):
        made.append(GroupSampler(env or short, 2, workers=workers))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


def short():
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


class Obeys(gymnasium.Wrapper):
    """Whoever takes away a file with an order obeys it: "die", as a machine that is lost, or "raise"."""

    def __init__(self, file):
        super().__init__(short())
        self.file = Path(file)

    def step(self, action):
        order = taken(self.file)
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "raise":
            raise RuntimeError("the motor is off")
        return super().step(action)


def taken(file):
    """The order that lay there, to whoever is first."""
    try:
        order = file.read_text()
        file.unlink()  # of several that read it only one removes it
    except FileNotFoundError:
        return None
    return order


class Keeps(Callback):
    def __init__(self):
        self.rows = []

    def on_iteration_end(self, trainer, metrics):
        self.rows.append({n: "nan" if math.isnan(v) else v for n, v in metrics.items() if n not in TIMINGS})

    def on_evaluation(self, trainer, report):
        self.rows.append(report.as_row())


class KillsOne(Callback):
    """An actor dies in the second iteration."""

    def __init__(self, file):
        self.file = file

    def on_iteration_end(self, trainer, metrics):
        if trainer.iteration == 1:
            self.file.write_text("die")


def trained(sampler, *callbacks):
    kept = Keeps()
    trainer = GRPOTrainer(
        mlp(4, 8, 2, seed=0),
        sampler,
        seed=3,
        groups_per_step=3,
        plan=MinibatchPlan(epochs=1, size=32),
        callbacks=[EvaluateEvery(steps=80, episodes=2), kept, *callbacks],
    )
    trainer.train(iterations=3)
    return parameters_of(trainer.policy), kept.rows


def sampled(sampler):
    policy = as_policy(mlp(4, 2, seed=0), sampler.action_space)
    return sampler.sample(policy, 2, np.random.SeedSequence(0, spawn_key=(1,)))


def test_a_run_has_the_bits_of_one_process_also_where_an_actor_is_lost(sampler_on, tmp_path):
    # Metrics, evaluations and weights; tests/test_workers.py says the same of the process pool.
    expected, expected_rows = trained(sampler_on(0))
    order = tmp_path / "order"
    sampler = sampler_on(RayWorkers(2), lambda: Obeys(order))
    weights, rows = trained(sampler, KillsOne(order))
    assert not order.exists()  # somebody died of it
    assert_same_parameters(weights, expected)
    assert rows == expected_rows


def test_a_job_that_loses_its_actors_or_raises_is_one_error_and_the_sampler_goes_on(sampler_on, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_actors, "LOSSES", 1)
    order = tmp_path / "order"
    sampler = sampler_on(RayWorkers(1), lambda: Obeys(order))
    order.write_text("die")
    with pytest.raises(WorkerError, match="1 Ray workers were lost while running GroupJob"):
        sampled(sampler)
    first = sampled(sampler)
    order.write_text("raise")
    with pytest.raises(WorkerError, match=r"(?s)failed while running GroupJob.*the motor is off"):
        sampled(sampler)
    assert torch.equal(first.log_probs, sampled(sampler_on(0)).log_probs)


def test_an_answer_that_does_not_come_in_time_is_an_error(sampler_on):
    with pytest.raises(WorkerError, match="Ray worker 0 did not answer in time while running GroupJob"):
        sampled(sampler_on(RayWorkers(1, timeout=0.01)))


def test_steps_run_there_too():
    policy = mlp(4, 8, 2, seed=0)
    batches = []
    for workers in (RayWorkers(2), 0):
        sampler = StepSampler(short, num_envs=9, steps=8, workers=workers)
        acting = as_policy(policy, sampler.action_space)
        seeds = [np.random.SeedSequence(0, spawn_key=(iteration,)) for iteration in (1, 2)]
        batches += [sampler.sample(acting, 9, seed) for seed in seeds]
        sampler.close()
    for batch, expected in zip(batches[:2], batches[2:], strict=True):
        assert torch.equal(batch.inputs.observations, expected.inputs.observations)
        assert torch.equal(batch.log_probs, expected.log_probs)


def test_rewards_are_those_of_a_call_here_also_where_an_actor_is_lost(tmp_path):
    file = tmp_path / "order"

    def dies_once(completions, **_):
        if taken(file) == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return [float(len(text)) for text in completions]

    texts = ["a", "bb", "ccc", "dddd"]
    reward = OnWorkers(dies_once, RayWorkers(2))
    for _ in range(2):
        file.write_text("die")
        assert score(reward, range(4), texts, {}) == [1.0, 2.0, 3.0, 4.0]
        assert not file.exists()
    reward.close()


@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"num_workers": 1, "timeout": 0.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=r"RayWorkers\(.*num_workers must be >= 1 and timeout > 0"):
        RayWorkers(**settings)
