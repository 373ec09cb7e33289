import json
import os
import pickle
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from environments import Counting, Quitting
from helpers import slow
from resume_runs import assert_same_run, process, resumed, rows_of, started
from safetensors.torch import load_file, save_file

from grpolib import (
    K3,
    CheckpointEvery,
    EvaluateEvery,
    GroupZScore,
    GRPOTrainer,
    StepSampler,
    archive,
    mlp,
)
from grpolib.archive import STATE, TENSORS, read_archive, write_archive


def tiny(folder=None, **keywords):
    return GRPOTrainer(mlp(2, 4, 2, seed=0), Quitting, run_folder=folder, group_size=2, groups_per_step=2, **keywords)


def tiny_again(folder, **keywords):
    return GRPOTrainer.resume(folder, mlp(2, 4, 2, seed=5), Quitting, group_size=2, groups_per_step=2, **keywords)


# The same bits.


@pytest.mark.parametrize(("kind", "workers"), [slow("grpo", 2), ("critic_free", 0), slow("ppo", 0), slow("ppo", 2)])
def test_a_run_goes_on_with_the_same_bits_in_a_new_process(kind, workers, tmp_path):
    unbroken = started(kind, tmp_path / "unbroken")
    unbroken.train(iterations=6)
    started(kind, tmp_path / "broken").train(iterations=3)
    other = process(kind, tmp_path / "broken", workers, 6)
    other.join(120)
    assert other.exitcode == 0
    assert_same_run(tmp_path / "unbroken", tmp_path / "broken")
    # What comes next is the same too.
    other = resumed(kind, tmp_path / "broken")
    seed = np.random.SeedSequence(3, spawn_key=(7,))
    batches = [t.sampler.sample(t.policy, t.recipe.groups_per_step, seed) for t in (unbroken, other)]
    assert torch.equal(batches[0].inputs.observations, batches[1].inputs.observations)
    assert torch.equal(batches[0].log_probs, batches[1].log_probs)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_goes_on_with_the_same_bits(tmp_path):
    started("ppo", tmp_path / "unbroken").train(iterations=40)
    waits = random.Random(0)
    for _ in range(5):  # `make kills` does two hundred
        killed = process("ppo", tmp_path / "killed", 0, 40)
        wait_for_progress(tmp_path / "killed", killed)
        time.sleep(waits.uniform(0.0, 0.06))
        killed.kill()
        killed.join(60)
        assert killed.exitcode in (0, -signal.SIGKILL)
    last = process("ppo", tmp_path / "killed", 0, 40)
    last.join(60)
    assert last.exitcode == 0
    assert_same_run(tmp_path / "unbroken", tmp_path / "killed")


def wait_for_progress(folder, running):
    """Until the process has written a checkpoint of its own, or has ended."""
    latest = folder / "checkpoints" / "latest"
    before = latest.read_text() if latest.exists() else None
    while running.is_alive() and (not latest.exists() or latest.read_text() == before):
        time.sleep(0.002)


def test_total_steps_count_from_the_start_of_the_run(tmp_path):
    trainer = tiny()
    trainer.train(iterations=2)
    trainer.save(tmp_path / "saved")
    again = tiny_again(tmp_path / "saved")
    assert (again.iteration, again.num_steps, again.seed) == (2, trainer.num_steps, 0)
    again.train(total_steps=trainer.num_steps + 1)
    assert again.iteration == 3


def test_a_checkpoint_of_its_own_goes_on_without_files(tmp_path):
    trainer = tiny(seed=4)
    trainer.save(tmp_path / "new" / "saved")
    again = tiny_again(tmp_path / "new" / "saved")
    assert (again.seed, again.run_folder) == (4, None)
    trainer.train(iterations=2)
    again.train(iterations=2)
    for one, other in zip(trainer.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_whether_the_update_is_compiled_goes_along(tmp_path, monkeypatch):
    monkeypatch.setattr("grpolib.updates.Update.compile", lambda self, rows: None)
    trainer = tiny(compile=True)
    trainer.train(iterations=1)
    trainer.save(tmp_path / "saved")
    again = tiny_again(tmp_path / "saved")
    assert (again.compile, again.is_compiled) == (True, False)
    again.train(iterations=1)
    assert again.is_compiled


# Open episodes.


class Remembers(Counting):
    """The episodes before leave a trace in the observations."""

    def __init__(self):
        super().__init__(length=5)
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed)

    def observation(self):
        return np.array([getattr(self, "resets", 0), self.time], dtype=np.float32)


def drawn(sampler, iteration):
    return sampler.sample(ACTS, sampler.num_envs, np.random.SeedSequence(0, spawn_key=(iteration,)))


ACTS = GRPOTrainer(mlp(2, 4, 2, seed=0), Quitting).policy


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_open_episodes_are_played_again(steps):
    sampler = StepSampler(lambda: Quitting(5), 10, steps)
    for iteration in range(4):
        drawn(sampler, iteration)
    again = StepSampler(lambda: Quitting(5), 10, steps)
    again.load_state(sampler.state())
    for iteration in range(4, 7):
        one, other = drawn(sampler, iteration), drawn(again, iteration)
        assert torch.equal(one.inputs.observations, other.inputs.observations)
        assert torch.equal(one.first_timesteps, other.first_timesteps)
        assert torch.equal(one.metrics["returns"], other.metrics["returns"])


def test_an_environment_that_does_not_repeat_is_named():
    sampler = StepSampler(Remembers, 1, 7)
    drawn(sampler, 0)
    drawn(sampler, 1)
    again = StepSampler(Remembers, 1, 7)
    again.load_state(sampler.state())
    with pytest.raises(ValueError, match=r"Remembers, reset seed \d+, step 4: .* came to something else"):
        drawn(again, 2)


def test_another_number_of_environments_is_refused():
    sampler = StepSampler(Counting, 2, 2)
    drawn(sampler, 0)
    with pytest.raises(ValueError, match="2 open episodes for 3 environments"):
        StepSampler(Counting, 3, 2).load_state(sampler.state())


# What a run folder keeps.


def test_the_last_checkpoints_stay_and_no_row_stands_twice(tmp_path):
    callbacks = [CheckpointEvery(2, keep_last=2), EvaluateEvery(1, episodes=1)]
    tiny(tmp_path, callbacks=callbacks).train(iterations=7)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"6", "7", "latest"}
    (tmp_path / "checkpoints" / "latest").write_text("6")
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("1")  # half a row
    again = tiny_again(tmp_path, callbacks=[CheckpointEvery(2, keep_last=2), EvaluateEvery(1, episodes=1)])
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "metrics.csv")] == [1, 2, 3, 4, 5, 6]
    again.train(iterations=2)
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "metrics.csv")] == list(range(1, 9))
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "evaluations.csv")] == list(range(9))
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"6", "8", "latest"}


def test_an_iteration_that_was_broken_off_is_not_saved(tmp_path):
    def fails(batch):
        raise RuntimeError("broken")

    trainer = tiny(tmp_path, callbacks=[CheckpointEvery(1)])
    trainer.train(iterations=1)
    trainer.sampler.sample = fails
    with pytest.raises(TypeError):
        trainer.train(iterations=1)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "1\n"
    with pytest.raises(RuntimeError, match="iteration 2 is not complete"):
        trainer.save(tmp_path / "other")


@pytest.mark.parametrize("presses", [1, 2])
def test_after_ctrl_c_the_last_whole_iteration_is_there(presses, tmp_path):
    # The first one lets the iteration finish, the second breaks it off.
    def estimator(batch):
        if trainer.iteration == 3:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return GroupZScore()(batch)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trainer = tiny(tmp_path, callbacks=[CheckpointEvery(1)], advantages=estimator)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(iterations=9)
    finally:
        signal.signal(signal.SIGINT, before)
    whole = 4 - presses
    assert (tmp_path / "checkpoints" / "latest").read_text() == f"{whole}\n"
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "metrics.csv")] == list(range(1, whole + 1))
    again = tiny_again(tmp_path, callbacks=[CheckpointEvery(1)], advantages=estimator)
    assert again.iteration == whole


def test_checkpoints_need_a_run_folder():
    with pytest.raises(ValueError, match="give the trainer run_folder="):
        tiny(callbacks=[CheckpointEvery()]).train(iterations=1)
    with pytest.raises(ValueError, match="keep_last=0 must be >= 1"):
        CheckpointEvery(keep_last=0)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_while_saving_leaves_the_checkpoint_before(error, tmp_path, monkeypatch):
    trainer = tiny(tmp_path, callbacks=[CheckpointEvery(1)])
    trainer.train(iterations=1)

    def crash(tensors, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(archive, "save_tensors", crash)
    with pytest.raises(type(error)):
        trainer.train(iterations=1)
    monkeypatch.undo()
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"1", "latest"}
    assert tiny_again(tmp_path).iteration == 1


# Files that are not what was written.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "saved"
    trainer = tiny()
    trainer.train(iterations=1)
    trainer.save(folder)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copied"))


def write_anew(folder, change):
    """A checkpoint with right checksums, whose state was changed."""
    state = read_archive(folder)
    change(state)
    shutil.rmtree(folder)
    write_archive(folder, state)


def test_nothing_is_overwritten(saved):
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        tiny().save(saved)


@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_damaged_files_are_named(name, copied):
    content = (copied / name).read_bytes()
    places = random.Random(0).sample(range(len(content)), 30)
    flipped = [content[:k] + bytes([content[k] ^ 1]) + content[k + 1 :] for k in places]
    for damaged in [b"", content[:-1].rstrip(b"}\n"), content[: len(content) // 2], *flipped]:
        (copied / name).write_bytes(damaged)
        if name == STATE and same_json(damaged, content):
            continue
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            tiny_again(copied)


def same_json(one, other):
    """Whether a change was one of spaces alone."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_missing_files_are_named(name, copied):
    (copied / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {name}"):
        tiny_again(copied)


def test_a_file_too_many_is_named(copied):
    (copied / "policy.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"policy\.pkl is no part of a checkpoint"):
        tiny_again(copied)


class Marks:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, (str(Path.cwd() / "marked"),))


@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_pickle_is_not_opened(name, copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (copied / name).write_bytes(pickle.dumps(Marks()))
    if name == TENSORS:
        fix_checksum(copied)
    with pytest.raises(ValueError, match="is damaged"):
        tiny_again(copied)
    assert not (tmp_path / "marked").exists()


def fix_checksum(folder):
    document = json.loads((folder / STATE).read_text())
    document["sha256"][TENSORS] = archive._file_checksum(folder / TENSORS)
    (folder / STATE).write_text(json.dumps(document))


@pytest.mark.parametrize("change", [dict.popitem, lambda tensors: tensors.update(x=torch.ones(1))])
def test_tensors_too_few_or_too_many_are_named(change, copied):
    tensors = load_file(copied / TENSORS)
    change(tensors)
    save_file(tensors, copied / TENSORS)
    fix_checksum(copied)
    with pytest.raises(ValueError, match=r"tensors\.safetensors is damaged \("):
        tiny_again(copied)


def test_another_format_is_named(copied):
    document = json.loads((copied / STATE).read_text())
    (copied / STATE).write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(ValueError, match="has format 2, this version reads 1"):
        tiny_again(copied)


def first_of(values):
    return next(iter(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("iteration"), r"missing \['iteration'\]"),
        (lambda s: s.update(more=1), r"unknown \['more'\]"),
        (lambda s: s.update(num_steps=-1), "has -1 as num_steps"),
        (lambda s: s.update(seed="__import__('os')"), "as seed"),
        (lambda s: s["policy"].pop(first_of(s["policy"])), "policy does not fit .* missing"),
        (lambda s: s["policy"].update(x=torch.ones(1)), r"unknown \['x'\]"),
        (lambda s: s["policy"].update({first_of(s["policy"]): torch.ones(7)}), r"policy/.* has shape \(7,\)"),
        (lambda s: s["policy"].update({first_of(s["policy"]): 1.0}), "expected a tensor"),
        (lambda s: s.update(critic={"x": torch.ones(1)}), "critic does not fit"),
        (lambda s: s.update(reference=None), "reference does not fit"),
        (lambda s: s["optimizer"]["state"]["0"].update(exp_avg=torch.ones(3)), r"state/0/exp_avg has shape \(3,\)"),
        (lambda s: s["optimizer"]["state"].update({"99": {}}), "has a state '99'"),
        (lambda s: s["optimizer"]["param_groups"][0].pop("lr"), "other parameter groups"),
        (lambda s: s["optimizer"]["param_groups"].append({}), "other parameter groups"),
        (lambda s: s["optimizer"].pop("state"), "expected param_groups and state"),
        (
            lambda s: s["recipe"]["loss"][1].update(coefficient=0.5),
            r"loss\[1\]\.coefficient is 0\.04, and 0\.5",
        ),
        (lambda s: s["sampler"].update(environment="Other"), "sampler.environment is 'Quitting', and 'Other'"),
    ],
)
def test_a_state_that_does_not_fit_is_named(change, message, copied):
    write_anew(copied, change)
    policy = mlp(2, 4, 2, seed=5)
    before = [parameter.clone() for parameter in policy.parameters()]
    with pytest.raises(ValueError, match=message) as caught:
        GRPOTrainer.resume(copied, policy, Quitting, group_size=2, groups_per_step=2)
    assert "copied" in str(caught.value)
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))


def test_other_pieces_are_named(saved):
    with pytest.raises(ValueError, match=r"recipe\.loss is .* in the file|recipe\.loss\[0\]\.name is 'K3'"):
        tiny_again(saved, loss=[K3(0.04)])
    with pytest.raises(ValueError, match=r"recipe\.max_grad_norm is 1\.0, and 0\.5 in the file"):
        tiny_again(saved, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="seed is 1, and 0 in"):
        tiny_again(saved, seed=1)


@pytest.mark.parametrize("text", ["../../elsewhere", "/etc", "", "1/../1", "latest", "-1"])
def test_the_name_of_the_latest_is_a_number(text, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_text(text)
    with pytest.raises(ValueError, match="write the number of one of the folders beside it"):
        tiny_again(tmp_path)


def test_where_there_is_no_checkpoint_the_message_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint\.json in"):
        tiny_again(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .* yet"):
        tiny_again(tmp_path)


def test_what_no_file_can_hold_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"a/1 is .*a checkpoint holds"):
        write_archive(tmp_path / "saved", {"a": [1, object()]})
    assert not (tmp_path / "saved").exists()
    write_archive(tmp_path / "saved", {"a": (1, 2.5, None, True, "x", torch.zeros(0), torch.ones(1, 2).T)})
    read = read_archive(tmp_path / "saved")
    assert read["a"][:5] == [1, 2.5, None, True, "x"]
    assert [tuple(value.shape) for value in read["a"][5:]] == [(0,), (2, 1)]
