"""Several ranks: the losses, gradients, metrics and evaluations of one process on the union of the batches."""

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import rank_runs
import torch
from helpers import make_batch
from language_models import llama, policy_of
from rank_runs import RUNS, TIMINGS, go_on, sharded_trainer, short
from safetensors.torch import load_file

from grpolib import (
    GAE,
    AnchorState,
    Critic,
    DynamicSampling,
    GroupSampler,
    GRPOTrainer,
    Normalized,
    Ranks,
    StepSampler,
    Trainer,
    mlp,
    shard_policy,
)
from grpolib.metrics import merged
from grpolib.ranks import Origins
from grpolib.resume import read_state, state_of
from grpolib.sharding import is_sharded

SCRIPT = Path(rank_runs.__file__)
TOLERANCE = 1e-6

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("without_shape_hook")]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What two ranks of torchrun left behind."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(SCRIPT), "runs", str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_are_one_process(job, name):
    trainer, rows = RUNS[name]()
    for rank in (0, 1):
        assert_close(
            load_file(job / f"{name}.{rank}.gradients"), {k: p.grad for k, p in trainer.policy.named_parameters()}
        )
        assert_close(load_file(job / f"{name}.{rank}.weights"), trainer.policy.state_dict())
        found = json.loads((job / f"{name}.{rank}.json").read_text())
        assert len(found) == len(rows)
        for row, expected in zip(found, rows, strict=True):
            # No mean over rows: of a minibatch in parts, it is that of the parts.
            row.pop("effective_sample_size", None), expected.pop("effective_sample_size", None)
            assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_ranks_have_the_same_bits(job):
    for name in RUNS:
        first, second = (load_file(job / f"{name}.{rank}.weights") for rank in (0, 1))
        assert all(torch.equal(first[k], second[k]) for k in first)


def test_a_sharded_policy_goes_on_from_a_file_with_two_ranks_or_one(job):
    trainer, _ = RUNS["sharded"]()
    two, one = read_state(job / "sharded-2"), sharded_trainer(folder=job / "sharded-1")
    one.train(iterations=1)
    for state in (two, state_of(one)):
        assert_close(state["policy"], trainer.policy.state_dict())
        found, right = (kept["state"] for kept in (state["optimizer"], trainer.optimizer.state_dict()))
        assert len(found) == len(right)
        for number, moments in right.items():
            assert_close(found.get(str(number), found.get(number)), moments)


def test_what_a_sharded_policy_does_not_do_is_said(job):
    for rank in (0, 1):
        found = json.loads((job / f"refused.{rank}.json").read_text())
        assert 0.4 < found.pop("share") < 0.6
        for name, words in {
            "alone": "give the trainer ranks=",
            "folder": "let a callback of yours call trainer.save on every rank",
            "copied": "load the model once more",
            "refreshed": "leave refresh_every out",
            "generate": "call generate within `with whole(policy):`",
            "whole": "make the trainer outside of `with whole(policy):`",
        }.items():
            assert words in found.pop(name), name
        assert found == {}


def test_only_language_models_are_sharded_and_one_rank_changes_nothing():
    with pytest.raises(TypeError, match="policy is a Sequential: FSDP2 is for language models"):
        shard_policy(mlp(4, 2), of_two())
    policy = policy_of(llama())
    shard_policy(policy, Ranks())
    assert not is_sharded(policy)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_run_goes_on_with_other_ranks_and_a_rank_that_dies_is_one_error(job, tmp_path):
    go_on(job / "run", 1)
    # As SLURM starts them, without torchrun's agent, which would end rank 0 before it has said why.
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "goes on and dies", str(job)],
            env={**os.environ, **address, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [1, 7]
    assert said[0].count("RankError: rank 0 of 2 has lost another one, or waited 60 s for it in vain") == 1

    expected = go_on(tmp_path / "run", 4)
    assert_close(load_file(job / "run" / "last" / "policy.safetensors"), expected.policy.module.state_dict())
    assert (job / "run" / "checkpoints" / "latest").read_text() == "4\n"
    for name in ("metrics.csv", "evaluations.csv"):
        found, right = (
            list(csv.DictReader((folder / name).read_text().splitlines())) for folder in (job / "run", tmp_path / "run")
        )
        assert len(found) == len(right)
        for row, other in zip(found, right, strict=True):
            kept = {key: float(value) for key, value in other.items() if key not in TIMINGS and value}
            assert {key: float(row[key]) for key in kept} == pytest.approx(kept, rel=1e-4, abs=1e-6)


def of_two(rank=0):
    ranks = Ranks()
    ranks.rank, ranks.size = rank, 2
    return ranks


def test_shares_are_whole_and_none_is_left_out():
    assert [list(of_two(rank).share(5)) for rank in (0, 1)] == [[0, 1], [2, 3, 4]]
    assert list(Ranks().share(3)) == [0, 1, 2]


@pytest.mark.parametrize("make", [lambda: StepSampler(short, 2, 4), lambda: DynamicSampling(GroupSampler(short, 2))])
def test_a_sampler_that_cannot_be_shared_is_refused(make):
    with pytest.raises(ValueError, match=r"does not know the other 1 ranks"):
        of_two().check(make(), 4)


def test_fewer_groups_than_ranks_are_refused():
    with pytest.raises(ValueError, match="groups_per_step is 1 for 2 ranks"):
        of_two().check(GroupSampler(short, 2), 1)


@pytest.mark.parametrize("where", ["policy", "critic"])
def test_statistics_of_each_rank_alone_are_refused(where):
    space = gymnasium.make("CartPole-v1").observation_space
    policy, values = mlp(4, 2), mlp(4, 1)
    if where == "policy":
        policy = Normalized(policy, space)
    else:
        values = Normalized(values, space)
    pieces = {"advantages": GAE(), "critic": Critic(values), "groups_per_step": 2}
    with pytest.raises(ValueError, match="each rank would normalise by what it saw itself"):
        Trainer(policy, GroupSampler(short, 2), ranks=of_two(), **pieces)


def test_an_estimator_of_observations_is_refused():
    batch = make_batch(inputs=Origins.of(0, 6, 3))
    with pytest.raises(AttributeError, match=r"reads inputs.observations, and with several ranks"):
        AnchorState(radius=1.0)(batch)


def test_a_rank_alone_is_no_rank():
    with Ranks.of_torchrun() as ranks:
        assert GRPOTrainer(mlp(4, 2), short, ranks=ranks).ranks is None


def test_a_part_without_rows_has_no_say():
    counts = torch.tensor([2.0, 0.0, 6.0])
    values = torch.tensor([1.0, float("nan"), 5.0])
    assert merged("clip_fraction", values, counts) == 4.0  # (2 x 1 + 6 x 5) / 8
    assert merged("ratio_min", values, counts) == 1.0
    assert merged("ratio_max", values, counts) == 5.0
    assert merged("loss", torch.tensor([1.0, 0.0, 5.0]), counts) == 6.0
