"""The study of other environments: a run becomes one line, is never repeated, and the table shows it."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "examples" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import environments_study as cli  # noqa: E402
from study import environments  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_shape_hook")

ROW = environments.BY_NAME["CartPole-v1-critic-free"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:total_steps is")
def test_a_run_is_one_line_and_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "REPORTED_EPISODES", 2)
    assert environments.run(ROW, 1, total_steps=300, results=tmp_path)
    (line,) = environments.finished(tmp_path)
    assert (line["row"], line["seed"]) == (ROW.name, 1)
    assert line["steps"] >= 300
    assert 1 <= line["sampled_mean"] <= 500
    assert not environments.run(ROW, 1, total_steps=300, results=tmp_path)
    table = environments.table(environments.finished(tmp_path))
    assert "| CartPole-v1 | 200,000 | `critic-free` | 1 |" in table


def line_of(row, seed, argmax):
    figures = dict.fromkeys(environments.COLUMNS, 1.0)
    return {**figures, "row": row, "seed": seed, "argmax_mean": argmax, "sampled_mean": argmax - 10}


def test_the_table_has_a_line_per_environment_and_recipe_that_ran():
    runs = [line_of("Acrobot-v1-ppo", 1, -80.0), line_of("Acrobot-v1-ppo", 0, -90.0)]
    (line,) = environments.table(runs).strip().splitlines()[2:]
    assert "| Acrobot-v1 | 500,000 | `ppo` | 2 |" in line
    assert line.index("-90") < line.rindex("-80")
    assert "-100" in line, "the return from which Gymnasium calls it solved"


def test_short_runs_stay_out_of_the_reported_results(capsys):
    assert cli.main(["--environments", "CartPole-v1", "--total-steps", "300"]) == 2
    assert "give --total-steps its own --results" in capsys.readouterr().err


@pytest.mark.examples
def test_the_command_runs_what_is_missing(tmp_path):
    command = [sys.executable, BENCHMARKS / "environments_study.py", "--environments", "CartPole-v1", "--seeds", "0"]
    budget = ["--total-steps", "300", "--results", tmp_path, "--work", tmp_path / "work"]
    first = subprocess.run([*command, *budget], capture_output=True, text=True, timeout=300, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 runs to do" in first.stdout
    assert {line["row"] for line in environments.finished(tmp_path)} == {"CartPole-v1-critic-free", "CartPole-v1-ppo"}
    again = subprocess.run([*command, *budget], capture_output=True, text=True, timeout=300, check=False)
    assert "0 runs to do" in again.stdout
