"""Disks that are full, folders that are read-only, checkpoints that are damaged: what was there before still loads."""

import json
import multiprocessing
import os
import resource
import shutil

import numpy as np
import pytest
import torch
from environments import Quitting
from resume_runs import assert_same_run, go_to, process, started

from grpolib import Callback, CheckpointEvery, EvaluateEvery, GRPOTrainer, StopAtReturn, StopOnPlateau, mlp
from grpolib.archive import STATE, TENSORS
from grpolib.evaluation import EpisodeStatistics, EvaluationReport

SIZES = {"group_size": 2, "groups_per_step": 2}


def tiny(folder, *callbacks, **keywords):
    return GRPOTrainer(mlp(2, 4, 2, seed=0), Quitting, run_folder=folder, callbacks=callbacks, **SIZES, **keywords)


def tiny_again(folder, *callbacks):
    return GRPOTrainer.resume(folder, mlp(2, 4, 2, seed=5), Quitting, callbacks=callbacks, **SIZES)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crash") / "run"
    tiny(folder, CheckpointEvery(1)).train(iterations=3)
    return folder


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copied")


# A latest checkpoint that is damaged.


def shorten(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = (shorten, flip, os.unlink)


@pytest.mark.parametrize("name", [STATE, TENSORS])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_latest_checkpoint_names_the_one_before_and_that_one_loads(name, damage, copied):
    checkpoints = copied / "checkpoints"
    damage(checkpoints / "3" / name)
    with pytest.raises(ValueError, match=rf"{name}.*checkpoints/2 is whole: write 2 into .*latest to go on from there"):
        tiny_again(copied)
    (checkpoints / "latest").write_text("2")
    again = tiny_again(copied, CheckpointEvery(1))
    assert again.iteration == 2
    again.train(iterations=1)
    assert (checkpoints / "latest").read_text() == "3\n"
    assert tiny_again(copied).iteration == 3


def test_of_several_damaged_checkpoints_the_youngest_whole_one_is_named(copied):
    for number in ("2", "3"):
        flip(copied / "checkpoints" / number / TENSORS)
    with pytest.raises(ValueError, match="checkpoints/1 is whole: write 1"):
        tiny_again(copied)
    flip(copied / "checkpoints" / "1" / STATE)
    with pytest.raises(ValueError, match=r"checkpoints/3/.* is damaged") as raised:
        tiny_again(copied)
    assert "is whole" not in str(raised.value)


@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_a_flipped_bit_is_found_in_every_part_of_a_file(name, copied):
    """The first and the last bytes, where lengths and headers are, and one in each of fifty stretches between."""
    path = copied / "checkpoints" / "3" / name
    content = path.read_bytes()
    stretches = np.linspace(0, len(content) - 1, 51).astype(int)
    places = {*range(16), *stretches.tolist(), *range(len(content) - 16, len(content))}
    for place in sorted(places):
        for bit in (0, 7):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            if name == STATE and _json(damaged) == _json(content):
                continue  # another kind of space
            with pytest.raises(ValueError, match=r"is damaged|has format|is whole"):
                tiny_again(copied / "checkpoints" / "3")


@pytest.mark.parametrize("name", [STATE, TENSORS])
def test_a_file_cut_anywhere_is_found(name, copied):
    path = copied / "checkpoints" / "3" / name
    content = path.read_bytes()
    for length in np.linspace(0, len(content) - 3, 40).astype(int):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is damaged"):
            tiny_again(copied / "checkpoints" / "3")


def _json(content):
    try:
        return json.loads(bytes(content))
    except ValueError:
        return None


# A disk that takes no more.


class LimitsFiles(Callback):
    """From an iteration on, no file may be longer than so many bytes: writing breaks off, as on a full disk."""

    def __init__(self, iteration, size):
        self.iteration, self.size = iteration, size

    def on_iteration_end(self, trainer, metrics):
        if trainer.iteration == self.iteration:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def train_on_a_full_disk(folder, size, errors):
    trainer = started("critic_free", folder)
    trainer.callbacks.insert(1, LimitsFiles(3, size))  # behind the progress bar
    try:
        trainer.train(iterations=6)
    except OSError as error:
        errors.send(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "named"), [(0, "could not be written"), (600, "File too large"), (2000, "File too large")]
)
def test_a_run_whose_disk_is_full_goes_on_from_the_checkpoint_before(size, named, tmp_path):
    """A table and then the policy, a table alone, or a checkpoint's JSON is the file that breaks off."""
    full = tmp_path / "full"
    context = multiprocessing.get_context("forkserver")
    errors, sender = context.Pipe(duplex=False)
    running = context.Process(target=train_on_a_full_disk, args=(full, size, sender))
    running.start()
    sender.close()
    running.join(120)
    assert running.exitcode == 0
    assert named in errors.recv()
    assert (full / "checkpoints" / "latest").read_text() == "2\n"
    assert not list(full.rglob("*.tmp")), "half a file stays"
    for folder in (full, tmp_path / "unbroken"):
        go_to("critic_free", folder, 0, 6)
    assert_same_run(tmp_path / "unbroken", full)


@pytest.mark.skipif(os.getuid() == 0, reason="no folder is read-only to root")
def test_a_read_only_folder_is_named(tmp_path):
    trainer = tiny(None)
    tmp_path.chmod(0o555)
    for path in ("saved", "deep/er/saved"):
        with pytest.raises(PermissionError):
            trainer.save(tmp_path / path)
    tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == []


def test_a_new_process_finds_what_the_full_disk_left(tmp_path):
    """Also half a checkpoint of a process that could not even tidy up."""
    go_to("critic_free", tmp_path / "run", 0, 2)
    half = tmp_path / "run" / "checkpoints" / ".3.tmp"
    half.mkdir()
    (half / TENSORS).write_bytes(b"half")
    other = process("critic_free", tmp_path / "run", 0, 3)
    other.join(120)
    assert other.exitcode == 0
    assert not half.exists()


# What callbacks carry.


def returns_of(rule, folder, iterations):
    trainer = tiny(folder, EvaluateEvery(1, episodes=2), rule, CheckpointEvery(1))
    trainer.train(iterations=iterations)
    return trainer


@pytest.mark.parametrize("stopped_at", [1, 2])
def test_a_plateau_is_counted_on(stopped_at, tmp_path):
    """Evaluations at 0 to 3 that are all equal: the third without a new best is that of iteration 3."""
    for folder in ("unbroken", "broken"):
        iterations = 9 if folder == "unbroken" else stopped_at
        returns_of(Level(3), tmp_path / folder, iterations)
    again = tiny_again(tmp_path / "broken", EvaluateEvery(1, episodes=2), Level(3), CheckpointEvery(1))
    again.train(iterations=9)
    assert again.iteration == 3
    assert (tmp_path / "unbroken" / "checkpoints" / "latest").read_text() == "3\n"


class Level(StopOnPlateau):
    """Sees evaluations that are all equal."""

    def on_evaluation(self, trainer, report):
        self._since_best += 1 if self._best == 5.0 else 0
        self._best = 5.0


def test_a_threshold_that_was_reached_stays_reached(tmp_path):
    rule = StopAtReturn(0.5)
    assert returns_of(rule, tmp_path, 5).iteration == 1
    again = tiny_again(tmp_path, EvaluateEvery(10**9, episodes=2), StopAtReturn(0.5), CheckpointEvery(1))
    again.train(iterations=5)
    assert again.iteration == 2  # an iteration is never cut; without the state there would be six


# The best checkpoint.


class Scores(EvaluateEvery):
    """Says what the evaluation of an iteration is."""

    def __init__(self, *means):
        super().__init__(1, episodes=1)
        self.means = means

    def _evaluate(self, trainer):
        self._evaluated_at = trainer.num_steps
        for callback in trainer.callbacks:
            if isinstance(callback, CheckpointEvery):
                callback.on_evaluation(trainer, report_of(self.means[trainer.iteration]))


def report_of(mean):
    one = EpisodeStatistics(returns=torch.tensor([mean]), lengths=torch.tensor([1]), threshold=None)
    return EvaluationReport(argmax=one, sampled=one, start_entropy=0.5)


def names(folder):
    return {path.name for path in (folder / "checkpoints").iterdir()}


def test_the_best_checkpoint_stays(tmp_path):
    means = (9.0, 1.0, 3.0, 3.0, 2.0, 2.0, 4.0, 1.0)
    best = CheckpointEvery(100, keep_last=1, keep_best=True)
    tiny(tmp_path, Scores(*means), best).train(iterations=5)
    assert names(tmp_path) == {"2", "5", "latest", "best"}
    assert (tmp_path / "checkpoints" / "best").read_text() == "2\n"
    assert tiny_again(tmp_path / "checkpoints" / "2").iteration == 2
    again = tiny_again(tmp_path, Scores(*means), CheckpointEvery(100, keep_last=1, keep_best=True))
    again.train(iterations=1)
    assert (tmp_path / "checkpoints" / "best").read_text() == "6\n"
    again.train(iterations=1)
    assert names(tmp_path) == {"6", "7", "latest", "best"}


def test_a_run_set_back_to_before_its_best_names_none(tmp_path):
    tiny(tmp_path, Scores(0.0, 1.0, 1.0, 5.0), CheckpointEvery(1, keep_best=True)).train(iterations=3)
    (tmp_path / "checkpoints" / "latest").write_text("2")
    again = tiny_again(tmp_path, Scores(0.0, 1.0, 1.0, 0.5), CheckpointEvery(1, keep_best=True))
    again.train(iterations=1)
    assert (tmp_path / "checkpoints" / "best").read_text() == "1\n"
