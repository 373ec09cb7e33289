import csv
import json
import math
import sys

import pytest
import wandb
from environments import Quitting

from grpolib import (
    CSVLogger,
    EvaluateEvery,
    GRPOTrainer,
    JSONLinesLogger,
    LogTo,
    MinibatchPlan,
    TensorBoardLogger,
    WandbLogger,
    mlp,
)


class Kept:
    """Keeps its rows."""

    def __init__(self):
        self.rows, self.closed = [], 0

    def log(self, row):
        self.rows.append(dict(row))

    def close(self):
        self.closed += 1


def trainer_with(*callbacks, **keywords):
    return GRPOTrainer(
        mlp(2, 4, 2),
        Quitting,
        group_size=2,
        groups_per_step=2,
        plan=MinibatchPlan(epochs=1, size=None),
        callbacks=[EvaluateEvery(1, episodes=2), *callbacks],
        **keywords,
    )


def json_rows(path):
    """As strict readers take them: no NaN, no Infinity."""
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def csv_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def points(folder):
    """The curves of a folder: name -> [(step, value)]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


# What is sent.


def test_iterations_and_evaluations_reach_every_logger():
    one, two = Kept(), Kept()
    trainer = trainer_with(LogTo(one, two))
    trainer.train(iterations=2)
    assert [row["iteration"] for row in one.rows] == [0, 1, 1, 2, 2]
    assert ["argmax_mean" in row for row in one.rows] == [True, True, False, True, False]
    assert one.rows[-1]["num_steps"] == one.rows[-2]["num_steps"] == trainer.num_steps
    assert {"return_mean", "loss", "entropy"} <= one.rows[-1].keys()
    assert {"argmax_mean", "sampled_solved", "start_entropy"} <= one.rows[-2].keys()
    assert one.rows == two.rows
    assert one.closed == two.closed == 1


def test_the_names_of_the_two_kinds_differ():
    metrics, evaluations = Kept(), Kept()
    trainer_with(LogTo(metrics, content="metrics"), LogTo(evaluations, content="evaluations")).train(iterations=1)
    assert [row["iteration"] for row in metrics.rows] == [1]
    assert [row["iteration"] for row in evaluations.rows] == [0, 1]
    assert metrics.rows[0].keys() & evaluations.rows[0].keys() == {"iteration", "num_steps"}


def test_the_files_of_a_run_folder_are_the_same(tmp_path):
    loggers = (
        LogTo(CSVLogger(tmp_path / "metrics.csv"), content="metrics"),
        LogTo(CSVLogger(tmp_path / "evaluations.csv"), content="evaluations"),
    )
    trainer_with(*loggers, run_folder=tmp_path / "run").train(iterations=3)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_loggers_are_closed_also_after_an_error():
    def breaks(batch):
        raise RuntimeError("boom")

    kept = Kept()
    with pytest.raises(RuntimeError, match="boom"):
        trainer_with(LogTo(kept), advantages=breaks).train(iterations=1)
    assert kept.closed == 1


@pytest.mark.usefixtures("without_shape_hook")
def test_where_nothing_can_go():
    with pytest.raises(TypeError, match=r"goes nowhere: give it a Logger"):
        LogTo()
    with pytest.raises(TypeError, match=r"'metrics.csv' has no log\(row\) and close\(\): .*CSVLogger\(path\)"):
        LogTo("metrics.csv")
    with pytest.raises(ValueError, match="content is 'all': choose one of 'everything', 'metrics', 'evaluations'"):
        LogTo(Kept(), content="all")


# JSON lines.


def test_one_object_a_line_with_the_numbers_as_they_were(tmp_path):
    kept = Kept()
    trainer = trainer_with(LogTo(JSONLinesLogger(tmp_path / "run.jsonl"), kept))
    trainer.train(iterations=2)
    trainer.train(iterations=1)  # the file was closed in between
    assert json_rows(tmp_path / "run.jsonl") == kept.rows
    assert [row["iteration"] for row in kept.rows if "loss" in row] == [1, 2, 3]


def test_both_kinds_of_rows_fit_one_table(tmp_path):
    trainer_with(LogTo(CSVLogger(tmp_path / "run.csv"))).train(iterations=2)
    rows = csv_rows(tmp_path / "run.csv")
    assert [row["iteration"] for row in rows] == ["0", "1", "1", "2", "2"]
    assert [row["loss"] == "" for row in rows] == [True, True, False, True, False]
    assert [row["argmax_mean"] == "" for row in rows] == [False, False, True, False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_word_for_is_null(tmp_path, value):
    logger = JSONLinesLogger(tmp_path / "run.jsonl")
    logger.log({"num_steps": 1, "return_mean": value})
    assert json_rows(tmp_path / "run.jsonl") == [{"num_steps": 1, "return_mean": None}]
    logger.close()


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path):
    logger = JSONLinesLogger(str(tmp_path / "run.jsonl"))
    logger.log({"a": 1})
    assert json_rows(tmp_path / "run.jsonl") == [{"a": 1}]
    logger.close()
    logger.close()
    logger.log({"b": 0.1})
    assert json_rows(tmp_path / "run.jsonl") == [{"a": 1}, {"b": 0.1}]
    logger.close()


def test_a_row_that_json_cannot_hold_leaves_no_half_line(tmp_path):
    logger = JSONLinesLogger(tmp_path / "run.jsonl")
    logger.log({"a": 1})
    with pytest.raises(TypeError):
        logger.log({"a": 1, "b": object()})
    assert json_rows(tmp_path / "run.jsonl") == [{"a": 1}]
    logger.close()


def test_no_file_is_written_over(tmp_path):
    (tmp_path / "run.jsonl").write_text("mine")
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        JSONLinesLogger(tmp_path / "run.jsonl")
    assert (tmp_path / "run.jsonl").read_text() == "mine"


# TensorBoard.


def test_curves_over_the_steps_of_the_run(tmp_path):
    kept = Kept()
    trainer = trainer_with(LogTo(TensorBoardLogger(tmp_path / "board"), kept))
    trainer.train(iterations=2)
    trainer.train(iterations=1)  # in a second file
    curves = points(tmp_path / "board")
    for name in ("return_mean", "loss", "argmax_mean", "iteration"):
        expected = [(row["num_steps"], pytest.approx(row[name])) for row in kept.rows if name in row]
        assert curves[name] == expected, name
    assert "num_steps" not in curves
    assert "argmax_solved" not in curves  # the environment names no threshold


def test_rows_without_steps_are_counted(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    for value in (3.0, 4.0):
        logger.log({"loss": value, "note": "text"})
    assert points(tmp_path) == {"loss": [(0, 3.0), (1, 4.0)]}  # flushed, while it is open
    logger.close()
    logger.close()


def test_two_runs_never_share_a_folder(tmp_path):
    (tmp_path / "events").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not empty.*nothing is overwritten"):
        TensorBoardLogger(tmp_path)
    with pytest.raises(FileExistsError):
        TensorBoardLogger(tmp_path / "events")


def test_tensorboard_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r'needs TensorBoard: pip install "grpolib\[tensorboard\]"'):
        TensorBoardLogger(tmp_path / "board")
    assert list(tmp_path.iterdir()) == []


# Weights & Biases.


def offline(folder):
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True, disable_git=True)
    return WandbLogger(mode="offline", dir=folder, project="lander", settings=settings)


def test_offline_runs_of_weights_and_biases(tmp_path):
    logger, kept = offline(tmp_path), Kept()
    seen = watched(logger)
    trainer = trainer_with(LogTo(logger, kept))
    trainer.train(iterations=1)
    trainer.train(iterations=1)  # the same run goes on
    assert [step for _, step in seen] == [row["num_steps"] for row in kept.rows]
    for (numbers, _), row in zip(seen, kept.rows, strict=True):
        assert numbers == {name: value for name, value in row.items() if isinstance(value, int | float)}
    files = sorted(tmp_path.rglob("*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # the name is the run's
    assert b"argmax_mean" in files[0].read_bytes()
    assert logger.close() is None


def watched(logger):
    """What reaches the run, and at which step."""
    seen, started = [], logger._started

    def watch(run):
        log = run.log
        run.log = lambda numbers, step: (seen.append((numbers, step)), log(numbers, step=step))
        return run

    watch(logger._run)
    logger._started = lambda: watch(started())
    return seen


def test_weights_and_biases_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'needs Weights & Biases: pip install "grpolib\[wandb\]"'):
        WandbLogger(mode="offline")
