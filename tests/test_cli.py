"""The command: every verb on a real run, and what it says when it cannot."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the extra cli is not installed")

from grpolib.cli import main
from grpolib.cli.presets import PRESETS
from grpolib.cli.runs import columns_of
from grpolib.cli.settings import Changes, read_settings
from grpolib.cli.statistics import interval, middle, probability_of_improvement

COMMAND = str(Path(sys.executable).with_name("grpolib"))
TRAIN = ["train", "CartPole-v1", "--algorithm", "grpo", "--total-steps", "6000", "--workers", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    command = [sys.executable, "-m", "grpolib", *TRAIN, "--width", "8", "--seed", "3", "--out", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "argmax" in done.stdout
    assert f"grpolib report {folder}" in done.stdout
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def rewrite(folder, **values):
    path = folder / "command.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_train_leaves_everything_that_the_other_verbs_need(run):
    settings = read_settings(run)
    assert (settings.env, settings.algorithm, settings.total_steps, settings.seed) == ("CartPole-v1", "grpo", 6000, 3)
    assert settings.width == 8
    result = json.loads((run / "result.json").read_text())
    assert result["num_steps"] >= 6000
    assert {"checkpoints", "config.json", "evaluations.csv", "metrics.csv", "best", "last"} <= {
        path.name for path in run.iterdir()
    }


def test_evaluate_gives_the_numbers_of_the_run(run, capsys):
    assert main(["evaluate", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    (argmax,) = re.findall(r"argmax +([0-9.]+)", capsys.readouterr().out)
    assert float(argmax) == pytest.approx(result["argmax_mean"], abs=0.05)


def test_resume_goes_on_to_the_end(copy, capsys):
    assert main(["resume", str(copy)]) == 0
    assert "is complete" in capsys.readouterr().out
    rewrite(copy, total_steps=12_000)
    assert main(["resume", str(copy), "--workers", "0"]) == 0
    assert re.search(r"goes on after iteration \d+, \d+ steps", capsys.readouterr().err)
    steps = columns_of(copy / "metrics.csv")["num_steps"]
    assert steps[-1] >= 12_000 > steps[-2]
    assert list(steps) == sorted(set(steps))


def test_a_report_is_one_page_with_everything_in_it(copy):
    assert main(["record", str(copy), "--episodes", "1", "--which", "best"]) == 0
    assert (copy / "video.mp4").read_bytes()[4:8] == b"ftyp"
    assert main(["report", str(copy)]) == 0
    page = (copy / "report.html").read_text()
    assert "http" not in re.sub(r'"data:[^"]*"', "", page)
    assert page.count("data:image/png;base64,") >= 6
    assert "data:video/mp4;base64," in page
    assert "CartPole-v1, grpo, 6,000 steps, seed 3" in page


def test_curves_and_comparison_put_seeds_together(run, copy, tmp_path, capsys):
    rewrite(copy, seed=4)
    other = shutil.copytree(run, tmp_path / "other")
    rewrite(other, algorithm="ppo")
    runs = [str(run), str(copy), str(other)]
    assert main(["plot", *runs, "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["compare", *runs]) == 0
    said = capsys.readouterr().out
    assert "CartPole-v1, grpo, 6,000 steps\n  2 seeds" in said
    assert "P(CartPole-v1, grpo, 6,000 steps > CartPole-v1, ppo, 6,000 steps) = 0.50" in said


def test_check_env(capsys):
    assert main(["check-env", "CartPole-v1"]) == 0
    assert "yes starts are equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["train", "CartPole-v1", "--preset", "Chess"], "no preset 'Chess'; there are CartPole-v1"),
        (["train", "CartPole-v1", "--algorithm", "ppo", "--group-size", "4"], "ppo has no groups"),
        (["train", "nowhere_to_find:CartPole-v1"], "nowhere_to_find"),
        (["evaluate", "nowhere"], "no command.json in nowhere"),
        (["report", "nowhere"], "no command.json in nowhere"),
        (["plot"], "give at least one folder"),
        (["compare"], "give at least one folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("grpolib: ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_run_is_not_overwritten(run, capsys):
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    assert main([*TRAIN, "--out", str(run)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


def test_a_run_that_is_not_complete_is_not_compared(copy, capsys):
    (copy / "result.json").unlink()
    assert main(["compare", str(copy)]) == 2
    assert "the run is not complete: grpolib resume" in capsys.readouterr().err


def test_a_file_does_not_say_what_is_imported(copy, capsys, monkeypatch, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    rewrite(copy, env="evil:CartPole-v1")
    for verb in ("evaluate", "resume", "record"):
        assert main([verb, str(copy)]) == 2
        assert "a file may not say what is imported: where you trust it" in capsys.readouterr().err
        assert main([verb, str(copy), "--env", "CartPole-v1"]) == 2
        assert "is a run of evil:CartPole-v1, not of CartPole-v1" in capsys.readouterr().err
    assert main(["report", str(copy)]) == 0  # nothing is played there
    assert "evil" not in sys.modules


OWN = """
import gymnasium

class Grid(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 1
        return 1, {}
    def step(self, action):
        self.place += 2 * int(action) - 1
        return self.place, float(self.place == 2), self.place != 1, False, {}
    def render(self):
        import numpy
        return numpy.full((32, 32, 3), 80 * self.place, dtype=numpy.uint8)

gymnasium.register("Grid-v0", Grid)
"""


@pytest.mark.slow
def test_an_environment_of_one_s_own_lies_in_the_present_folder(tmp_path):
    (tmp_path / "own_grid.py").write_text(OWN)
    own = ["--env", "own_grid:Grid-v0"]
    for arguments in (
        ["check-env", "own_grid:Grid-v0"],
        ["train", "own_grid:Grid-v0", "--total-steps", "60", "--workers", "1", "--out", "run"],
        ["evaluate", "run", "--episodes", "2", *own],
        ["resume", "run", *own],
        ["record", "run", "--episodes", "1", *own],
        ["report", "run"],
    ):
        done = subprocess.run([COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    "damage", [{"algorithm": "rm -rf"}, {"changes": []}, {"surprise": 1}, {"env": 5}, {"changes": {"lr": 1}}]
)
def test_damaged_settings_are_named(copy, damage, capsys):
    rewrite(copy, **damage)
    assert main(["evaluate", str(copy)]) == 2
    assert "command.json" in capsys.readouterr().err


def test_changes_reach_the_recipe(run):
    settings = read_settings(run)
    same = settings.recipe()
    assert (same.group_size, same.plan.epochs) == (16, 4)
    changes = Changes(group_size=4, groups_per_step=2, epochs=3, minibatch=32, learning_rate=0.5, max_grad_norm=0.1)
    changed = changes.of(same)
    assert (changed.group_size, changed.groups_per_step, changed.max_grad_norm) == (4, 2, 0.1)
    assert (changed.plan.epochs, changed.plan.size) == (3, 32)
    assert changed.optimizer.keywords["lr"] == 0.5
    assert changed.loss == same.loss


def test_every_preset_is_an_environment():
    gymnasium = pytest.importorskip("gymnasium")
    assert PRESETS.keys() <= gymnasium.registry.keys()


def test_comparison_figures():
    # A quarter of the values at each end is left out: of 1, 2, 3, 100 the middle is (2 + 3) / 2.
    assert middle([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert interval([7.0]) is None
    low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 1 < low < 3 < high < 5
    # Of the four pairs, 3 > 1, 3 > 2, 2 > 1, and 2 = 2 counts half.
    assert probability_of_improvement([3.0, 2.0], [1.0, 2.0]) == 0.875
    assert math.isclose(probability_of_improvement([1.0, 2.0], [3.0, 2.0]), 0.125)


def test_without_the_extra_the_command_names_it():
    code = "import sys; sys.modules['tyro'] = None; from grpolib.cli import main; sys.exit(main(['train']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "grpolib needs tyro: pip install 'grpolib[cli]'\n"


@pytest.mark.parametrize("verb", ["train", "resume", "evaluate", "record", "plot", "compare", "report", "check-env"])
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 200
