import copy
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from environments import Counting, Quitting
from helpers import Constant, assert_same_parameters, parameters_of
from torch import nn

from grpolib import (
    Callback,
    CSVLogger,
    EvaluateEvery,
    GroupZScore,
    GRPOTrainer,
    MinibatchPlan,
    ReferencePolicy,
    as_policy,
    load_policy,
    mlp,
    recipes,
    save_policy,
)
from grpolib.checkpoint import describe

SIZES = (2, 4, 2)


def trainer_of(folder, env=Quitting, *, every=10, episodes=2, **keywords):
    keywords.setdefault("callbacks", [EvaluateEvery(every, episodes=episodes)])
    settings = {"group_size": 2, "groups_per_step": 2, "plan": MinibatchPlan(epochs=1, size=None), **keywords}
    return GRPOTrainer(mlp(*SIZES), env, run_folder=folder, **settings)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def strict_json(path):
    """JSON as every reader takes it: no NaN, no Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} in {path.name}")

    return json.loads(path.read_text(), parse_constant=refuse)


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# What a run leaves behind.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "new" / "run"
    trainer = trainer_of(folder)
    trainer.train(iterations=3)
    return folder, trainer


def test_the_files_of_a_run(run):
    folder, _ = run
    assert {str(path) for path in snapshot(folder)} == {
        "config.json",
        "metrics.csv",
        "evaluations.csv",
        "best/policy.json",
        "best/policy.safetensors",
        "last/policy.json",
        "last/policy.safetensors",
    }


def test_one_row_of_finite_metrics_an_iteration(run):
    folder, trainer = run
    rows = rows_of(folder / "metrics.csv")
    assert [int(row["iteration"]) for row in rows] == [1, 2, 3]
    assert int(rows[-1]["num_steps"]) == trainer.num_steps
    assert {"return_mean", "group_return_std", "loss", "entropy", "grad_norm", "clip_fraction", "kl_reference"} <= set(
        rows[0]
    )
    assert all(math.isfinite(float(value)) for row in rows for value in row.values())
    assert len((folder / "metrics.csv").read_text().splitlines()) == 4


def test_evaluations_at_the_start_and_where_a_multiple_was_passed(run):
    folder, _ = run
    steps = [0] + [int(row["num_steps"]) for row in rows_of(folder / "metrics.csv")]
    expected = [0] + [now for before, now in pairwise(steps) if now // 10 > before // 10]
    rows = rows_of(folder / "evaluations.csv")
    assert [int(row["num_steps"]) for row in rows] == expected
    assert [int(row["iteration"]) for row in rows] == [steps.index(now) for now in expected]
    assert {"argmax_mean", "sampled_mean", "argmax_length", "start_entropy"} <= set(rows[0])


def test_the_last_policy_is_that_of_the_last_iteration(run):
    folder, trainer = run
    module = mlp(*SIZES, seed=9)
    information = load_policy(module, folder / "last")
    assert (information["iteration"], information["num_steps"]) == (3, trainer.num_steps)
    assert_same_parameters(parameters_of(module), parameters_of(trainer.policy.module))
    observations = torch.rand(5, 2)
    assert torch.equal(module(observations), trainer.policy.module(observations))


def test_the_configuration_names_the_pieces(run):
    folder, _ = run
    config = strict_json(folder / "config.json")
    assert config["seed"] == 0
    assert config["sampler"] == {"name": "GroupSampler", "environment": "Quitting", "group_size": 2}
    recipe = config["recipe"]
    assert recipe["advantages"] == {"name": "GroupZScore", "epsilon": 1e-4, "correction": 0, "scale": "group"}
    assert [loss["name"] for loss in recipe["loss"]] == ["ClippedSurrogateLoss", "K3"]
    assert recipe["loss"][1]["coefficient"] == 0.04
    assert recipe["plan"] == {"name": "MinibatchPlan", "epochs": 1, "size": None, "by": "step"}
    assert recipe["optimizer"]["lr"] == 3e-4
    assert recipe["reference"]["refresh_every"] == 10
    assert recipe["group_size"] == 2
    assert "Linear(in_features=2" in config["policy"]


def test_the_best_policy_is_that_of_the_best_argmax_return(tmp_path):
    class Quits(Callback):
        """Makes the policy's mode quit at once (a return of 1), go on to the end (6), and quit again."""

        def on_iteration_end(self, trainer, metrics):
            with torch.no_grad():
                trainer.policy.module.output.copy_(
                    torch.tensor([[-5.0, 5.0], [5.0, -5.0], [-5.0, 5.0]][trainer.iteration - 1])
                )

    module = Constant(-1.0, 1.0)
    trainer = GRPOTrainer(
        module, Quitting, run_folder=tmp_path, group_size=2, callbacks=[Quits(), EvaluateEvery(1, episodes=2)]
    )
    trainer.train(iterations=3)
    assert [float(row["argmax_mean"]) for row in rows_of(tmp_path / "evaluations.csv")] == [1.0, 1.0, 6.0, 1.0]
    best, last = Constant(0.0, 0.0), Constant(0.0, 0.0)
    information = load_policy(best, tmp_path / "best")
    load_policy(last, tmp_path / "last")
    assert best.output.tolist() == [5.0, -5.0]
    assert last.output.tolist() == [-5.0, 5.0]
    assert (information["iteration"], information["argmax_mean"]) == (2, 6.0)


def test_of_equal_evaluations_the_first_is_kept(tmp_path):
    trainer = trainer_of(tmp_path, Counting, every=1)
    trainer.train(iterations=2)
    assert strict_json(tmp_path / "best" / "policy.json")["iteration"] == 0


def test_the_environment_s_threshold_may_be_missing(run):
    # Then the share of solved episodes is null in JSON and empty in the table.
    folder, _ = run
    assert strict_json(folder / "best" / "policy.json")["argmax_solved"] is None
    assert rows_of(folder / "evaluations.csv")[0]["argmax_solved"] == ""


def test_a_run_folder_evaluates_every_fifty_thousand_steps_unless_told_otherwise(tmp_path):
    def intervals(folder, callbacks):
        trainer = GRPOTrainer(mlp(*SIZES), Quitting, run_folder=folder, callbacks=callbacks)
        return [(c.steps, c.episodes) for c in trainer.callbacks if isinstance(c, EvaluateEvery)]

    assert intervals(tmp_path / "a", []) == [(50_000, 10)]
    assert intervals(tmp_path / "b", [EvaluateEvery(7, episodes=3)]) == [(7, 3)]
    assert intervals(None, []) == []


# Going on.


def test_training_again_goes_on_in_the_same_files(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.train(iterations=2)
    trainer.evaluate(episodes=1)
    trainer.train(iterations=1)
    trainer.train(total_steps=trainer.num_steps + 1)
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "metrics.csv")] == [1, 2, 3, 4]
    assert strict_json(tmp_path / "last" / "policy.json")["iteration"] == 4
    evaluations = [int(row["num_steps"]) for row in rows_of(tmp_path / "evaluations.csv")]
    assert evaluations == sorted(set(evaluations))
    module = mlp(*SIZES)
    load_policy(module, tmp_path / "last")
    assert_same_parameters(parameters_of(module), parameters_of(trainer.policy.module))


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
    seen = []

    class Reads(Callback):
        def on_iteration_end(self, trainer, metrics):
            path = tmp_path / "run" / "metrics.csv"
            seen.append(len(rows_of(path)) if path.exists() else 0)

    trainer_of(tmp_path / "run", callbacks=[Reads(), EvaluateEvery(10, episodes=2)]).train(iterations=3)
    assert seen == [0, 1, 2]  # before this iteration's own row


def test_an_error_keeps_what_was_there(tmp_path):
    class Fails(Callback):
        def on_iteration_end(self, trainer, metrics):
            if trainer.iteration == 2:
                raise RuntimeError("boom")

    trainer = trainer_of(tmp_path / "run", callbacks=[EvaluateEvery(10, episodes=2), Fails()])
    with pytest.raises(RuntimeError, match="boom"):
        trainer.train(iterations=3)
    assert strict_json(tmp_path / "run" / "last" / "policy.json")["iteration"] == 2


def test_an_error_within_an_iteration_leaves_no_half_trained_policy(tmp_path):
    def breaks(batch):
        if trainer.iteration == 2:
            raise RuntimeError("boom")
        return batch.rewards

    trainer = trainer_of(tmp_path / "run", advantages=breaks)
    with pytest.raises(RuntimeError, match="boom"):
        trainer.train(iterations=3)
    assert load_policy(mlp(*SIZES), tmp_path / "run" / "last")["iteration"] in (0, 1)  # as it was last evaluated
    assert [row["iteration"] for row in rows_of(tmp_path / "run" / "metrics.csv")] == ["1"]


# Where it may write.


@pytest.mark.parametrize("content", ["notes.txt", ".hidden", "metrics.csv"])
def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path, content):
    (tmp_path / content).write_text("mine")
    with pytest.raises(FileExistsError, match=r"not empty.*give another.*nothing is overwritten") as error:
        trainer_of(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert {str(path): text for path, text in snapshot(tmp_path).items()} == {content: b"mine"}


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        trainer_of(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_the_folder_of_an_earlier_run_is_refused(run):
    folder, _ = run
    before = snapshot(folder)
    with pytest.raises(FileExistsError):
        trainer_of(folder)
    assert snapshot(folder) == before


def test_an_empty_folder_is_taken_also_as_a_string(tmp_path):
    (tmp_path / "run").mkdir()
    trainer_of(str(tmp_path / "run")).train(iterations=1)
    assert len(rows_of(tmp_path / "run" / "metrics.csv")) == 1


def test_a_trainer_that_cannot_be_made_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="no KL term"):
        trainer_of(tmp_path / "run", recipe=recipes.critic_free(), reference=ReferencePolicy())
    assert list(tmp_path.iterdir()) == []


# Descriptions.


def estimate(batch):
    return batch.rewards


def test_pieces_are_described_by_name_and_values():
    assert describe(None) is None
    assert describe([1, 2.5, "three", True, None]) == [1, 2.5, "three", True, None]
    assert describe(GroupZScore(scale="none"))["scale"] == "none"
    assert describe(estimate) == {"name": "estimate"}
    assert describe(GroupZScore) == {"name": "GroupZScore"}  # a schedule names the class whose value it sets
    assert describe(partial(torch.optim.Adam, lr=0.1, betas=(0.9, 0.99))) == {
        "name": "Adam",
        "lr": 0.1,
        "betas": [0.9, 0.99],
    }
    assert "policy" not in describe(ReferencePolicy(policy=as_policy(Constant(0.0, 0.0), Counting.action_space)))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_has_no_word_for(value):
    json.loads(json.dumps(describe([value])), parse_constant=pytest.fail)


def test_a_configuration_without_a_gradient_bound_is_json(tmp_path):
    trainer_of(tmp_path / "run", max_grad_norm=math.inf)
    assert strict_json(tmp_path / "run" / "config.json")["recipe"]["max_grad_norm"] in (None, "inf", "Infinity")


# Policy files.


@pytest.fixture
def saved(tmp_path):
    module = mlp(*SIZES, seed=1)
    save_policy(module, tmp_path / "saved", note="hello")
    return tmp_path / "saved", module


def test_a_policy_and_its_information_come_back(saved):
    folder, module = saved
    other = mlp(*SIZES, seed=2)
    information = load_policy(other, folder)
    assert information == {"format": 1, "note": "hello"}
    assert_same_parameters(parameters_of(other), parameters_of(module))
    assert other[0].weight.requires_grad


def test_files_do_not_depend_on_the_adapter_around_a_module(saved, tmp_path):
    folder, module = saved
    wrapped = as_policy(mlp(*SIZES, seed=2), Counting.action_space)
    load_policy(wrapped, folder)
    assert_same_parameters(parameters_of(wrapped.module), parameters_of(module))
    save_policy(wrapped, tmp_path / "wrapped")
    plain = mlp(*SIZES, seed=3)
    load_policy(plain, tmp_path / "wrapped")
    assert_same_parameters(parameters_of(plain), parameters_of(module))


def test_saving_again_replaces(saved):
    folder, _ = saved
    second = mlp(*SIZES, seed=5)
    save_policy(second, folder, note="again")
    other = mlp(*SIZES)
    assert load_policy(other, folder)["note"] == "again"
    assert_same_parameters(parameters_of(other), parameters_of(second))
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]


def test_a_file_knows_of_no_device_and_no_threads(saved):
    # So one that was written beside a GPU opens without it.
    folder, module = saved
    content = (folder / "policy.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert {key for entry in header.values() for key in entry} == {"dtype", "shape", "data_offsets"}
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        other = mlp(*SIZES, seed=2)
        load_policy(other, folder)
    finally:
        torch.set_num_threads(threads)
    assert_same_parameters(parameters_of(other), parameters_of(module))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_what_a_gpu_saved_opens_on_a_cpu(saved, tmp_path):
    _, module = saved
    save_policy(copy.deepcopy(module).cuda(), tmp_path / "gpu")
    other = mlp(*SIZES, seed=2)
    load_policy(other, tmp_path / "gpu")
    assert {value.device.type for value in other.state_dict().values()} == {"cpu"}
    assert_same_parameters(parameters_of(other), parameters_of(module))


def tied():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, second)


def transposed():
    module = nn.Linear(2, 3, bias=False)
    module.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
    return module


def with_buffers():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[1].running_mean.fill_(3.0)
    module[1].num_batches_tracked.fill_(7)
    return module


@pytest.mark.parametrize("make", [tied, transposed, with_buffers, lambda: nn.Linear(2, 2).double()])
def test_parameters_of_every_kind_come_back(tmp_path, make):
    module = make()
    save_policy(module, tmp_path)
    other = make()
    for value in other.state_dict().values():
        value.zero_()
    load_policy(other, tmp_path)
    assert_same_parameters(parameters_of(other), parameters_of(module))
    assert {value.dtype for value in other.state_dict().values()} == {
        value.dtype for value in module.state_dict().values()
    }


def remove_parameters(folder):
    (folder / "policy.safetensors").unlink()


def remove_information(folder):
    (folder / "policy.json").unlink()


def cut(folder):
    path = folder / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def empty(folder):
    (folder / "policy.safetensors").write_bytes(b"")


def scramble(folder):
    (folder / "policy.safetensors").write_bytes(b"\x80\x04\x95 this is a pickle, or is it?" * 20)


def scramble_information(folder):
    (folder / "policy.json").write_text("{")


def other_format(folder):
    (folder / "policy.json").write_text('{"format": 99}')


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (remove_parameters, FileNotFoundError, r"no policy\.safetensors in .*saved.*run/best"),
        (remove_information, FileNotFoundError, r"policy\.json"),
        (cut, ValueError, r"policy\.safetensors is damaged"),
        (empty, ValueError, r"policy\.safetensors is damaged"),
        (scramble, ValueError, r"policy\.safetensors is damaged"),
        (scramble_information, ValueError, r"policy\.json is damaged"),
        (other_format, ValueError, r"format 99, this version reads 1"),
    ],
)
def test_a_damaged_or_missing_file_leaves_the_policy_as_it_was(saved, damage, error, message):
    folder, _ = saved
    damage(folder)
    module = mlp(*SIZES, seed=4)
    before = parameters_of(module)
    with pytest.raises(error, match=message):
        load_policy(module, folder)
    assert_same_parameters(parameters_of(module), before)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (mlp(2, 4, 4, 2), r"missing \['4\.bias', '4\.weight'\], unknown \[\]"),
        (mlp(2, 2), r"missing \[\], unknown \['2\.bias', '2\.weight'\]"),
        (mlp(2, 5, 2), r"0\.weight has shape \(4, 2\), this policy's has \(5, 2\)|0\.bias has shape \(4,\)"),
        (Constant(0.0), r"missing \['output'\], unknown \['0\.bias'"),
    ],
)
def test_a_policy_of_another_shape_is_left_as_it_was(saved, module, message):
    folder, _ = saved
    before = parameters_of(module)
    with pytest.raises(ValueError, match=message):
        load_policy(module, folder)
    assert_same_parameters(parameters_of(module), before)


def test_a_crash_while_saving_keeps_the_earlier_policy(saved, monkeypatch):
    folder, module = saved

    def half(state, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("grpolib.checkpoint.save_file", half)
    with pytest.raises(KeyboardInterrupt):
        save_policy(mlp(*SIZES, seed=8), folder)
    other = mlp(*SIZES, seed=9)
    assert load_policy(other, folder)["note"] == "hello"
    assert_same_parameters(parameters_of(other), parameters_of(module))
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]


# The table of numbers.


def test_a_table_opens_again_after_it_was_closed(tmp_path):
    logger = CSVLogger(tmp_path / "table.csv")
    logger.log({"a": 1, "b": 2.5})
    logger.close()
    logger.close()
    logger.log({"a": 3, "b": None})
    logger.close()
    assert (tmp_path / "table.csv").read_text().splitlines() == ["a,b", "1,2.5", "3,"]


def test_a_name_that_comes_later_becomes_a_column_and_one_that_is_missing_stays_empty(tmp_path):
    logger = CSVLogger(tmp_path / "table.csv")
    logger.log({"a": 1, "b": 2})
    logger.log({"b": 3, "c": 4})
    logger.log({"a": 5})
    logger.close()
    assert (tmp_path / "table.csv").read_text().splitlines() == ["a,b,c", "1,2,", ",3,4", "5,,"]
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_a_table_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(FileExistsError, match=r"table\.csv exists.*nothing is overwritten"):
        CSVLogger(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "mine"


# Ctrl-C and SIGTERM.

SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have switched it off
from grpolib import EvaluateEvery, GRPOTrainer, mlp
trainer = GRPOTrainer(mlp(4, 8, 2), "CartPole-v1", group_size=4, run_folder=sys.argv[1],
                      callbacks=[EvaluateEvery(10**9, episodes=1)])
trainer.train(iterations=10**6)
"""


@pytest.mark.parametrize(
    ("number", "exit_codes", "tracebacks"), [(signal.SIGINT, (1, 130, -signal.SIGINT), 1), (signal.SIGTERM, (143,), 0)]
)
def test_a_signal_ends_a_script_with_everything_written(number, exit_codes, tracebacks, tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_rows(folder / "metrics.csv", 3, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in exit_codes
    lines = errors.strip().splitlines()
    assert lines[0] == f"{number.name}: the iteration is finished and everything written first; once more stops at once"
    assert errors.count("Traceback") == tracebacks
    assert lines[-1] == (lines[0] if number == signal.SIGTERM else "KeyboardInterrupt")
    rows = rows_of(folder / "metrics.csv")
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    assert all(math.isfinite(float(value)) for row in rows for value in row.values())
    information = load_policy(mlp(4, 8, 2), folder / "last")
    assert information["iteration"] == len(rows) >= 2
    assert not list(folder.rglob("*.tmp"))


def wait_for_rows(path, lines, process):
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count(os.linesep) < lines:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "the run wrote nothing"
        time.sleep(0.05)


def test_evaluation_episodes_are_no_training_steps(tmp_path):
    trainer_of(tmp_path / "run", lambda: Counting(5), every=1).train(iterations=2)
    assert [int(row["num_steps"]) for row in rows_of(tmp_path / "run" / "metrics.csv")] == [20, 40]


def test_an_error_in_a_later_iteration_leaves_the_last_evaluated_policy(tmp_path):
    def fails_in_the_third(batch):
        if trainer.iteration == 3:
            raise ArithmeticError("mine")
        return torch.ones(batch.num_steps)

    folder = tmp_path / "run"
    trainer = GRPOTrainer(
        mlp(*SIZES),
        Quitting,
        advantages=fails_in_the_third,
        group_size=2,
        groups_per_step=1,
        run_folder=folder,
        callbacks=[EvaluateEvery(steps=1, episodes=1)],
    )
    with pytest.raises(ArithmeticError, match="mine"):
        trainer.train(iterations=5)
    information = load_policy(mlp(*SIZES), folder / "last")
    assert information["iteration"] == 2
    assert len(rows_of(folder / "metrics.csv")) == 2
