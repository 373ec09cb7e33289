"""Nothing is left behind: no tensors, processes or files, no state of the program that trains."""

import gc
import multiprocessing
import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from environments import Counting, Quitting
from helpers import global_generators_untouched

from grpolib import (
    Callback,
    EvaluateEvery,
    GroupSampler,
    GRPOTrainer,
    MinibatchPlan,
    PPOTrainer,
    StepSampler,
    as_policy,
    evaluate,
    mlp,
    recipes,
)

PLAN = MinibatchPlan(epochs=1, size=64)

# The run-time checks make short work long, and beartype draws from `random`, which is watched here.
pytestmark = pytest.mark.usefixtures("without_shape_hook")


class Measures(Callback):
    """Calls `measure` at the end of some iterations."""

    def __init__(self, measure, iterations):
        self.measure, self.iterations, self.found = measure, iterations, []

    def on_iteration_end(self, trainer, metrics):
        if trainer.iteration in self.iterations:
            self.found.append(self.measure())


def live_tensors():
    gc.collect()
    # Types only: some objects do not bear to be asked what they are.
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def short():
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


def grpo(**keywords):
    settings = {"group_size": 2, "groups_per_step": 2, "plan": PLAN, **keywords}
    return GRPOTrainer(mlp(4, 8, 2), short, **settings)


def critic_free(**keywords):
    return grpo(recipe=recipes.critic_free(), **keywords)


def ppo(**keywords):
    return PPOTrainer(mlp(4, 8, 2), short, num_envs=2, steps=32, plan=PLAN, **keywords)


@pytest.mark.slow
@pytest.mark.parametrize("make", [grpo, critic_free, ppo])
def test_the_number_of_tensors_stays_the_same(make, tmp_path):
    measures = Measures(live_tensors, (20, 40, 60))
    often = EvaluateEvery(500, episodes=1)
    make(callbacks=[often, measures], run_folder=tmp_path / "run").train(iterations=60)
    assert len(set(measures.found)) == 1, measures.found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory in /proc")
def test_the_memory_stays_the_same():
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    measures = Measures(resident, (100, 200))
    grpo(callbacks=[measures]).train(iterations=200)
    assert measures.found[1] - measures.found[0] < 5.0


def test_a_trainer_that_is_dropped_leaves_nothing():
    def run():
        trainer = grpo()
        trainer.train(iterations=1)
        trainer.evaluate(episodes=1)
        trainer.sampler.close()

    run()
    before = live_tensors()
    run()
    assert live_tensors() == before


# Workers.


def open_files(process="self"):
    return len(os.listdir(f"/proc/{process}/fd"))


def shared_memory(processes):
    """Entries of /dev/shm that carry the number of one of the processes."""
    numbers = {str(process) for process in processes}
    return sum(bool(numbers & set(name.replace("-", "_").split("_"))) for name in os.listdir("/dev/shm"))


def mapped_files():
    """Shared memory is mapped as a file that was deleted at once."""
    return sum("torch_" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_workers_leave_no_files_and_no_processes(tmp_path):
    def workers():
        return sorted(process.pid for process in multiprocessing.active_children())

    files, mapped = open_files(), mapped_files()

    def measure():
        gc.collect()
        children = workers()
        return {
            "workers": children,
            "open files": [open_files(process) for process in ("self", *children)],
            "mapped files": mapped_files(),
            "shared memory": shared_memory([os.getpid(), *children]),
        }

    measures = Measures(measure, (10, 20, 30))
    often = EvaluateEvery(500, episodes=1)
    trainer = grpo(workers=2, callbacks=[often, measures], run_folder=tmp_path / "run")
    with global_generators_untouched():
        trainer.train(iterations=30)
    assert torch.get_num_threads() == 2
    assert len(measures.found[0]["workers"]) == 2
    assert measures.found[0] == measures.found[1] == measures.found[2]

    trainer.sampler.close()
    del trainer, often
    gc.collect()
    assert workers() == []
    # The tracker of shared memory and the server that hands out its files stay, once for the whole program.
    assert open_files() <= files + 4
    assert mapped_files() == mapped


# Graphs.


def tensors_of(batch):
    names = (
        "log_probs",
        "rewards",
        "values",
        "final_values",
        "reference_log_probs",
        "reference_parameters",
        "penalties",
    )
    found = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
    found |= {"observations": batch.inputs.observations, "actions": batch.inputs.actions, **batch.metrics}
    return found if batch.final_inputs is None else {**found, "final_inputs": batch.final_inputs}


@pytest.mark.parametrize("make", [grpo, critic_free, ppo])
def test_a_batch_carries_no_graph(make):
    trainer = make()
    trainer.train(iterations=1)
    batch = trainer.sampler.sample(trainer.policy, trainer.recipe.groups_per_step, np.random.SeedSequence(0))
    if trainer.reference is not None:
        batch = trainer.reference.annotate(batch, with_parameters=True)
        assert batch.reference_log_probs is not None
    if trainer.critic is not None:
        batch = trainer.critic.annotate(batch)
        assert batch.values is not None
    for name, value in tensors_of(batch).items():
        assert not value.requires_grad, name
        assert value.grad_fn is None, name
    assert not trainer.recipe.advantages(batch).requires_grad


@pytest.mark.parametrize("make", [grpo, critic_free, ppo])
def test_metrics_are_plain_numbers(make):
    metrics = make().step()
    assert {name: type(value) for name, value in metrics.items() if type(value) not in (int, float)} == {}


# The program that trains.


@pytest.mark.usefixtures("two_threads")
def test_training_and_evaluating_leave_the_program_as_it_was():
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    with global_generators_untouched():
        for make in (grpo, ppo):
            trainer = make()
            trainer.train(iterations=2)
            trainer.evaluate(episodes=2)
            trainer.sampler.close()
        evaluate(mlp(2, 2), Counting, episodes=2)
    assert torch.get_num_threads() == 2
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (grad_mode, dtype)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("make", [lambda env: GroupSampler(env, 2), lambda env: StepSampler(env, 2, 4)])
def test_sampling_leaves_the_program_as_it_was_also_when_it_fails(make):
    class Fails(Quitting):
        def reward(self, action):
            raise ValueError("boom")

    def sampled(env):
        sampler = make(env)
        return sampler.sample(as_policy(mlp(2, 2), sampler.action_space), 2, np.random.SeedSequence(0))

    with global_generators_untouched():
        sampled(Quitting)
        with pytest.raises(ValueError, match="boom"):
            sampled(Fails)
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()
