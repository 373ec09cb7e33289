"""Every example runs, with a tiny budget."""

import csv
import json
import runpy
import subprocess
import sys
from pathlib import Path

import environments  # noqa: F401  Box2D, imported with its warnings off
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LUNAR_LANDER = EXAMPLES / "lunarlander.py"

BUDGETS = {
    "quickstart.py": ["--total-steps", 2000],
    "own_estimator.py": ["--total-steps", 2000],
    "continuous.py": ["--total-steps", 7000],
    "pieces.py": ["--iterations", 2],
    "arithmetic.py": ["--iterations", 2, "--cold-start", 0.0, "--unseen", 20],
    "text_to_sql.py": ["--iterations", 2, "--cold-start", 0.0, "--unseen", 4],
    "hf_model.py": ["--iterations", 2, "--max-new-tokens", 4],
}
OTHERS = {"lunarlander.py"}
pytestmark = pytest.mark.examples
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(*arguments, **keywords):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **keywords)


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} <= BUDGETS.keys() | OTHERS


@pytest.mark.parametrize("name", [name for name in BUDGETS if (EXAMPLES / name).exists()])
def test_an_example_runs_and_writes_nothing(tmp_path, name):
    done = run(EXAMPLES / name, *BUDGETS[name], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == []
    if name == "quickstart.py":
        first_words = [line.split()[0] for line in done.stdout.splitlines()]
        table = ["return", "argmax", "sampled", "20"]
        assert first_words == ["before:", *table, "after:", *table]
        assert done.stdout.count("solved: return >= 475") == 2


@pytest.mark.cluster
def test_groups_run_on_ray(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    done = run(EXAMPLES / "scale" / "ray_rollouts.py", "--total-steps", 500, "--workers", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 episodes each" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_several_ranks_write_one_run(tmp_path):
    folder = tmp_path / "run"
    script = EXAMPLES / "scale" / "several_ranks.py"
    done = run(*TORCHRUN, script, "--total-steps", 500, "--run-folder", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("20 episodes each") == 1
    assert len((folder / "metrics.csv").read_text().splitlines()) == 2
    assert (folder / "checkpoints" / "latest").read_text() == "1\n"


@pytest.mark.parametrize(("recipe", "options"), [("critic-free", []), ("grpo", ["--recipe", "grpo"])])
def test_the_lunar_lander_leaves_its_result_and_its_curves(tmp_path, recipe, options):
    folder = tmp_path / "run"
    done = run(LUNAR_LANDER, "--total-steps", 7000, "--seed", 3, "--out", folder, *options)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert {path.name for path in folder.iterdir()} == {
        "best",
        "config.json",
        "curves.png",
        "evaluations.csv",
        "last",
        "metrics.csv",
        "result.json",
    }
    result = json.loads((folder / "result.json").read_text())
    assert (result["recipe"], result["seed"]) == (recipe, 3)
    assert result["steps"] >= 7000
    assert f"{result['argmax_mean']:.1f}" in done.stdout
    assert str(folder) in done.stdout
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert int(rows[-1]["num_steps"]) == result["steps"]
    assert len(rows) == result["iterations"]
    assert ("kl_reference" in rows[0]) == (recipe == "grpo")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((folder / "config.json").read_text())
    assert (config["recipe"]["reduction"] == "episode_mean") == (recipe == "grpo")


def test_an_earlier_run_is_not_written_over(tmp_path, monkeypatch):
    (tmp_path / "result.json").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["lunarlander.py", "--total-steps", "3000", "--out", str(tmp_path)])
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        runpy.run_path(str(LUNAR_LANDER), run_name="__main__")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("result.json", "mine")]
