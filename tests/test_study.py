"""The LunarLander study: every row trains, a finished run is kept and never repeated, the report is made from files."""

import csv
import dataclasses
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import environments
import gymnasium
import numpy as np
import pytest
import torch
from helpers import Constant

from grpolib import Callback, EvaluateEvery, GroupSampler, StepSampler, evaluate, load_policy

BENCHMARKS = Path(__file__).parent.parent / "examples" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import lunarlander_study as cli  # noqa: E402
from study import environments as environments_rows  # noqa: E402
from study import jobs, outcomes, report, running, spread, tables  # noqa: E402
from study.lines import add_once  # noqa: E402
from study.locks import locked  # noqa: E402
from study.results import CURVE_COLUMNS, PROGRESS_COLUMNS, RUN_COLUMNS, Results  # noqa: E402
from study.rows import BY_NAME, CHOOSING_SEEDS, ENV, REPORT_SEEDS, ROWS, SEARCH_ROWS, check_seeds, named, planned  # noqa: E402

# The equations and the sampler have tests of their own; here whole runs are tried, as a user runs them.
pytestmark = pytest.mark.usefixtures("without_shape_hook")

# Rows


@pytest.mark.parametrize("row", BY_NAME.values(), ids=lambda row: row.name)
def test_every_row_trains(row):
    trainer = row.make_trainer(seed=5, total_steps=3000)
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    # Two groups of two, or a short rollout: the recipe is what is tried here, not its size.
    if isinstance(trainer.sampler, StepSampler):
        trainer.sampler = StepSampler(ENV, trainer.sampler.num_envs, 16)
        metrics = trainer.step()
        assert math.isfinite(metrics["explained_variance"])
    else:
        trainer.sampler = GroupSampler(trainer.sampler.source, 2)
        trainer.recipe = trainer.recipe.replaced(groups_per_step=2)
        metrics = trainer.step()
        assert metrics["group_return_std"] > 0
    trainer.sampler.close()
    assert all(math.isfinite(metrics[name]) for name in ("loss", "entropy", "clip_fraction"))
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.policy.parameters(), strict=True))


def recipe(name, total_steps=2_000_000):
    return BY_NAME[name].recipe(total_steps)


def test_sizes_are_starts_times_episodes():
    sizes = {name: (recipe(name).groups_per_step, recipe(name).group_size) for name in BY_NAME}
    assert sizes["grpo"] == sizes["critic-free"] == (4, 16)
    assert sizes["grpo-4x64"] == (4, 64)
    assert sizes["grpo-8x16"] == (8, 16)
    assert sizes["critic-free-4x4"] == (4, 4)
    assert sizes["critic-free-16x4"] == (16, 4)
    assert sizes["critic-free-1x64"] == (1, 64)
    assert sizes["search-4x8-cut400"] == (4, 8)
    sampler = BY_NAME["ppo"].make_trainer(0, 3000).sampler
    assert (sampler.num_envs, sampler.steps) == (16, 1024)


def test_rows_of_one_family_differ_from_each_other():
    for rows in (ROWS, SEARCH_ROWS):
        told = [(str(row.recipe(2_000_000)), row.max_episode_steps) for row in rows]
        assert len(set(told)) == len(rows)


def test_an_ablation_leaves_out_one_ingredient():
    published = recipe("grpo").pieces()

    def changed(name):
        return {piece for piece, value in recipe(name).pieces().items() if value != published[piece]}

    assert changed("grpo-step-mean") == {"reduction"}
    assert changed("grpo-no-kl") == {"loss", "reference"}
    assert changed("grpo-step-mean-no-kl") == {"loss", "reduction", "reference"}
    assert changed("grpo-refresh-1") == {"reference"}
    assert changed("grpo-no-std") == changed("grpo-rloo") == {"advantages"}
    assert changed("process") == changed("process-099") == {"advantages"}
    assert changed("grpo-4x64") == {"group_size"}
    assert changed("grpo-8x16") == {"groups_per_step"}
    assert changed("grpo-entropy") == {"loss", "schedules"}


def test_training_is_cut_and_evaluation_is_not():
    assert BY_NAME["search-4x8-cut400"].make_trainer(5, 3000).sampler.max_length == 400
    row = dataclasses.replace(BY_NAME["critic-free-4x4"], max_episode_steps=5)
    seen = []

    class Watch(Callback):
        def on_iteration_end(self, trainer, metrics):
            seen.append(metrics["length_max"])

        def on_evaluation(self, trainer, report):
            seen.append(report.argmax.length)

    trainer = row.make_trainer(5, 100, callbacks=[EvaluateEvery(1000, 2, env=ENV), Watch()])
    trainer.train(iterations=1)
    in_full, cut = seen
    assert cut == 5
    assert in_full > 40


def test_schedules_end_with_the_run():
    trainer = BY_NAME["search-4x8-10x256-cut500-entropy"].make_trainer(5, 3000)
    for steps, rate, bonus in [(0, 1e-3, 0.01), (1500, 5e-4, 0.005), (3000, 0.0, 0.0), (5000, 0.0, 0.0)]:
        trainer.num_steps = steps
        for schedule in trainer.recipe.schedules:
            schedule(trainer)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        assert trainer.update.losses[-1].coefficient == pytest.approx(bonus)


def test_names_are_patterns():
    assert named(["all"]) == list(ROWS)
    assert [row.name for row in named(["ppo", "critic-free-4*", "ppo"])] == ["ppo", "critic-free-4x4"]
    assert named(["search-*"]) == list(SEARCH_ROWS)
    with pytest.raises(ValueError, match="no row 'gppo'; there are grpo, "):
        named(["gppo"])


def test_the_search_keeps_off_the_reported_seeds():
    search = named(["search-0995"])
    check_seeds(search, CHOOSING_SEEDS, may_report=False)
    check_seeds(search, REPORT_SEEDS, may_report=True)
    check_seeds(named(["grpo"]), REPORT_SEEDS, may_report=False)
    with pytest.raises(ValueError, match="seed 4 is a reported one"):
        check_seeds(search, [5, 4], may_report=False)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", "--rows", "search-0995", "--seeds", "0"])
    assert stopped.value.code == 2


LONG = ["grpo", "process", "process-099", "critic-free", "critic-free-shipped", "ppo", "a2c"]
"""Rows of five seeds."""


def test_the_plan_starts_with_the_rows_of_five_seeds():
    pairs = planned()
    assert len(pairs) == len(set(pairs)) == len(LONG) * 5 + (len(ROWS) - len(LONG)) * 3
    assert [name for name, _ in pairs[: len(LONG)]] == LONG
    first = len(LONG) * 5
    seeds = [seed for _, seed in pairs]
    assert seeds == sorted(seeds[:first]) + sorted(seeds[first:])
    assert not any(name.startswith("search") for name, _ in pairs)


# Outcomes


class Scripted(environments.Counting):
    """Ends after three steps with a last reward of one's own."""

    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, last, **settings):
        super().__init__(3, **settings)
        self.last = last

    def reward(self, action):
        return self.last if self.time == 3 else -1.5


@pytest.mark.parametrize(
    ("last", "settings", "outcome"),
    [
        (100, {}, "landed"),
        (-100, {}, "crashed"),
        (0.3, {"terminates": False, "truncates": True}, "timed_out"),
        # The last step of the time limit may land too.
        (100, {"truncates": True}, "landed"),
    ],
)
def test_the_last_reward_tells_how_an_episode_ended(last, settings, outcome):
    log = {7: []}
    flight = outcomes.Flight(Scripted(last, **settings), log)
    for _ in range(2):
        flight.reset(seed=7)
        for action in (0, 1, 2):
            flight.step(action)
    # 0.03 of the side engine and 0.3 of the main one.
    assert log[7] == [outcomes.Episode(3, outcome, pytest.approx(0.33))] * 2


def test_measuring_gives_what_evaluate_gives():
    policy = running.new_policy(3)
    report_there = evaluate(policy, ENV, episodes=9, first_seed=40)
    figures = outcomes.measure(policy, episodes=9, first_seed=40)
    assert set(figures) == set(outcomes.COLUMNS)
    for name, value in report_there.as_row().items():
        assert figures[name] == value
    for way in outcomes.WAYS:
        shares = [figures[f"{way}_{outcome}"] for outcome in ("landed", "crashed", "timed_out")]
        assert sum(shares) == pytest.approx(1.0)


def test_engine_use_is_counted_per_episode():
    figures = outcomes.measure(Constant(0.0, 0.0, 50.0, 0.0), episodes=2, first_seed=0)
    assert figures["argmax_engine"] == pytest.approx(0.3 * figures["argmax_length"])
    figures = outcomes.measure(Constant(0.0, 50.0, 0.0, 0.0), episodes=2, first_seed=0)
    assert figures["sampled_engine"] == pytest.approx(0.03 * figures["sampled_length"])


# Results


def lines_of(row, seed, argmax=100.0, sampled=120.0, entropy=0.6):
    """A finished run of made-up figures."""
    key = {"row": row, "seed": seed}
    numbers = dict.fromkeys(RUN_COLUMNS, 0.5)
    figures = {"argmax_mean": argmax, "sampled_mean": sampled, "start_entropy": entropy}
    words = {"grpolib": "0.1.0", "commit": "abc", "torch": "2.6"}
    run = {**numbers, **figures, **words, **key, "steps": 2_012_345, "iterations": 80}
    curve = [{**key, "num_steps": steps, **figures} for steps in (0, 1_012_345, 2_012_345)]
    stage = dict.fromkeys(PROGRESS_COLUMNS, 0.25)
    progress = [{**stage, **figures, **key, "share": share} for share in running.SHARES]
    return run, curve, progress


def test_what_is_added_is_read_back(tmp_path):
    results = Results(tmp_path / "new")
    assert results.finished() == set()
    run, curve, progress = lines_of("grpo", 0, argmax=-1877.5)
    assert results.add({**run, "explained_variance": math.nan}, curve, progress)
    (line,) = results.runs()
    assert (line["row"], line["seed"], line["steps"], line["argmax_mean"]) == ("grpo", 0, 2_012_345, -1877.5)
    assert math.isnan(line["explained_variance"])
    assert [point["num_steps"] for point in results.curves()] == [0, 1_012_345, 2_012_345]
    assert [stage["share"] for stage in results.progress()] == list(running.SHARES)
    header = (tmp_path / "new" / "runs.csv").read_text().splitlines()[0]
    assert header.startswith("row,seed,steps,argmax_mean,sampled_mean,argmax_solved,")


def test_a_run_is_added_once(tmp_path):
    results = Results(tmp_path)
    assert results.add(*lines_of("grpo", 0, argmax=1.0))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert not results.add(*lines_of("grpo", 0, argmax=2.0))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert results.add(*lines_of("grpo", 1))
    assert results.finished() == {("grpo", 0), ("grpo", 1)}


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_half_written_line_is_no_run_and_makes_room(tmp_path, kept):
    results = Results(tmp_path)
    results.add(*lines_of("grpo", 0))
    results.add(*lines_of("grpo", 1, argmax=1.0))
    first, second = (tmp_path / "runs.csv").read_bytes().rstrip(b"\n").rsplit(b"\n", 1)
    (tmp_path / "runs.csv").write_bytes(first + b"\n" + second[: kept if kept >= 0 else None])
    assert results.finished() == {("grpo", 0)}
    assert {point["seed"] for point in results.curves()} == {0}
    # The curve that the lost run left is replaced, not doubled.
    assert results.add(*lines_of("grpo", 1, argmax=2.0))
    assert [line["argmax_mean"] for line in results.runs()] == [100.0, 2.0]
    assert [point["argmax_mean"] for point in results.curves() if point["seed"] == 1] == [2.0] * 3
    assert len(results.progress()) == 2 * len(running.SHARES)


def test_a_half_written_header_is_written_again(tmp_path):
    (tmp_path / "runs.csv").write_text("row,seed,st")
    assert Results(tmp_path).finished() == set()
    assert Results(tmp_path).add(*lines_of("grpo", 0))
    assert Results(tmp_path).finished() == {("grpo", 0)}


def test_damaged_files_raise(tmp_path):
    results = Results(tmp_path)
    results.add(*lines_of("grpo", 0))
    content = (tmp_path / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_text(content + "grpo,1,2000\n" + content.splitlines()[1] + "\n")
    with pytest.raises(ValueError, match="line 3 has 3 fields"):
        results.finished()
    with pytest.raises(ValueError, match="line 3 has 3 fields"):
        results.add(*lines_of("grpo", 2))
    (tmp_path / "runs.csv").write_text(content + content.splitlines()[1] + "\n")
    with pytest.raises(ValueError, match="grpo seed 0 twice"):
        results.finished()
    (tmp_path / "runs.csv").write_text("row,seed\n")
    with pytest.raises(ValueError, match="move the file away"):
        results.finished()


def test_a_line_needs_every_column(tmp_path):
    run, curve, progress = lines_of("grpo", 0)
    with pytest.raises(ValueError, match="commit"):
        Results(tmp_path).add({name: value for name, value in run.items() if name != "commit"}, curve, progress)
    with pytest.raises(ValueError, match="extra"):
        Results(tmp_path).add({**run, "extra": 1}, curve, progress)
    assert list(tmp_path.iterdir()) == []


def test_runs_that_end_together_are_all_kept(tmp_path):
    pairs = [(name, seed) for name in ("grpo", "ppo", "a2c") for seed in range(5)]
    threads = [threading.Thread(target=lambda pair=pair: Results(tmp_path).add(*lines_of(*pair))) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = Results(tmp_path)
    assert results.finished() == set(pairs)
    assert len(results.runs()) == len(pairs)
    assert len(results.curves()) == 3 * len(pairs)


def test_the_files_of_the_repository_have_these_columns():
    folder = BENCHMARKS.parent.parent / "docs" / "results"
    for name, columns in (("runs", RUN_COLUMNS), ("curves", CURVE_COLUMNS), ("progress", PROGRESS_COLUMNS)):
        with (folder / f"{name}.csv").open(newline="") as file:
            assert tuple(next(csv.reader(file))) == columns
    known = {(name, seed) for name in BY_NAME for seed in range(10)}
    assert Results(folder).finished() <= known


# One run


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(running, "REPORTED_EPISODES", 2)
    monkeypatch.setattr(running, "PROGRESS_EPISODES", 2)
    monkeypatch.setattr(running, "EVALUATE_EVERY", 1000)
    monkeypatch.setattr(running, "CHOOSING_EPISODES", 2)


def one_run(folder, name="critic-free-4x4", seed=0, total_steps=2500):
    return running.run(
        BY_NAME[name], seed, total_steps=total_steps, results=Results(folder / "results"), work=folder / "work"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_run_goes_into_the_results_and_is_not_repeated(tmp_path):
    leftover = tmp_path / "work" / "critic-free-4x4-0.partial"
    leftover.mkdir(parents=True)
    (leftover / "metrics.csv").write_text("of a run that crashed")
    assert one_run(tmp_path)
    results, folder = Results(tmp_path / "results"), tmp_path / "work" / "critic-free-4x4-0"
    (line,) = results.runs()
    assert not leftover.exists()
    assert line["steps"] >= 2500
    assert line["iterations"] == len((folder / "metrics.csv").read_text().splitlines()) - 1
    assert line["commit"].strip("+").isalnum() or line["commit"] == ""
    for name in ("kl_reference_median", "explained_variance"):
        assert math.isnan(line[name])
    final = running.new_policy()
    load_policy(final, folder / "last")
    assert line["argmax_mean"] == pytest.approx(evaluate(final, ENV, episodes=2).argmax.mean, rel=1e-4)
    curve = results.curves()
    assert [point["num_steps"] for point in curve] == sorted(point["num_steps"] for point in curve)
    assert curve[0]["num_steps"] == 0
    assert len(curve) >= 3
    stages = results.progress()
    assert [stage["share"] for stage in stages] == list(running.SHARES)
    assert stages[-1]["num_steps"] == line["steps"]
    assert all(s["num_steps"] >= s["share"] * 2500 for s in stages)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.csv")}
    assert not one_run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.csv")} == before


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_evaluations_keep_their_distance(tmp_path):
    assert one_run(tmp_path, "a2c")
    points = [point["num_steps"] for point in Results(tmp_path / "results").curves()]
    assert points == [0, 1000, 2000], "iterations of 40 steps, an evaluation every 1,000"


@pytest.mark.usefixtures("tiny")
@pytest.mark.filterwarnings("ignore:total_steps is 1, and the first iteration")
def test_a_run_that_fails_leaves_no_line(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(running, "measure", fails)
    with pytest.raises(RuntimeError, match="out of luck"):
        one_run(tmp_path, total_steps=1)
    assert Results(tmp_path / "results").finished() == set()
    monkeypatch.undo()
    for name in ("REPORTED_EPISODES", "PROGRESS_EPISODES", "CHOOSING_EPISODES"):
        monkeypatch.setattr(running, name, 1)
    assert one_run(tmp_path, total_steps=1)


def test_a_pair_that_another_process_runs_is_left_to_it(tmp_path, capsys):
    with locked(tmp_path / "work" / "grpo-0.lock"):
        assert not one_run(tmp_path, "grpo")
    assert "by another process" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_the_figures_of_the_optimisation():
    metrics = [
        {
            "kl_reference": k,
            "kl_old_k3": 2.0,
            "clip_fraction": k / 10,
            "group_return_std": 10.0 * k,
            "explained_variance": k,
        }
        for k in range(1, 13)
    ]
    figures = running.diagnostics([{**metrics[0], "kl_reference": math.nan}, *metrics])
    assert figures["iterations"] == 13
    assert (figures["kl_reference_median"], figures["kl_reference_max"]) == (6.5, 12.0)
    assert figures["clip_fraction_max"] == 1.2
    # Of the last ten: 3 to 12.
    assert (figures["group_return_std"], figures["explained_variance"]) == (75.0, 7.5)
    assert math.isnan(figures["degenerate_fraction_max"])


# Several runs


def python(code):
    return [sys.executable, "-c", code]


def test_jobs_go_on_after_one_that_fails(tmp_path, capsys):
    pairs = [("grpo", seed) for seed in range(4)]
    code = "import os, sys; print(os.environ['OMP_NUM_THREADS']); sys.exit('no luck' if {0} == 1 else 0)"
    failed = jobs.run_all(pairs, lambda pair: python(code.format(pair[1])), 2, tmp_path, lambda pair: "went well")
    assert failed == [("grpo", 1)]
    output = capsys.readouterr().out
    assert output.count("went well") == 3
    assert "grpo seed 1 failed (1): no luck" in output
    assert (tmp_path / "grpo-3.log").read_text().strip() == "1"


def test_no_jobs_at_a_time_raises(tmp_path):
    with pytest.raises(ValueError, match="jobs is 0"):
        jobs.run_all([("grpo", 0)], lambda pair: python("pass"), 0, tmp_path, lambda pair: "")


def test_an_interrupt_ends_the_running_jobs(tmp_path):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

    def interrupt(_):
        while not (tmp_path / "grpo-0.log").read_text().endswith("\n"):
            pass
        raise KeyboardInterrupt

    pairs = [("grpo", 0), ("grpo", 1)]
    with pytest.raises(KeyboardInterrupt):
        jobs.run_all(pairs, lambda pair: python(code if pair[1] == 0 else "pass"), 2, tmp_path, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "grpo-0.log").read_text()), 0)


@pytest.mark.examples
def test_the_command_runs_what_is_missing(tmp_path):
    command = [sys.executable, BENCHMARKS / "lunarlander_study.py"]
    where = ["--results", tmp_path / "results"]
    Results(tmp_path / "results").add(*lines_of("grpo", 1))
    budget = ["--rows", "grpo", "--seeds", "0", "1", "--total-steps", "7000", "--work", tmp_path / "work"]
    done = subprocess.run([*command, "run", *budget, *where], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 runs to do" in done.stdout
    assert "grpo seed 0 done: argmax" in done.stdout
    results = Results(tmp_path / "results")
    assert results.finished() == {("grpo", 0), ("grpo", 1)}
    assert results.runs()[0]["argmax_mean"] == 100.0
    assert "argmax" in (tmp_path / "work" / "grpo-0.log").read_text()


def test_short_runs_stay_out_of_the_reported_results(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--rows", "grpo", "--total-steps", "3000"])
    assert "give shorter or longer ones --results FOLDER" in capsys.readouterr().err


def test_list_and_plan_say_what_is_done(tmp_path, capsys):
    Results(tmp_path).add(*lines_of("ppo", 2))
    assert cli.main(["list", "--results", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ppo ")]
    assert line.endswith(" 2")
    assert cli.main(["plan", "--results", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "missing 0 1 3 4" in output
    assert f"1 of {len(planned())} planned runs are done" in output
    assert "next: grpo 0, process 0, " in output


def test_the_planned_runs_can_be_narrowed_to_seeds(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(cli, "run_all", lambda pairs, *_: asked.extend(pairs) or [])
    Results(tmp_path).add(*lines_of("ppo", 4))
    assert cli.main(["run", "--planned", "--seeds", "4", "--results", str(tmp_path)]) == 0
    assert asked == [(name, 4) for name in LONG if name != "ppo"]


# The report


def synthetic(results, rows):
    """Runs that look like the real thing."""
    rng = np.random.default_rng(0)
    ends = {"grpo": (-20, 110, 1.1), "process": (90, 160, 0.8), "critic-free": (262, 255, 0.3), "ppo": (276, 274, 0.35)}
    ends |= {"a2c": (-30, -20, 0.15), "anchor": (180, 190, 0.5), "to-go": (150, 170, 0.6)}
    for row in rows:
        name = next((name for name in sorted(ends, key=len, reverse=True) if row.name.startswith(name)), "critic-free")
        argmax, sampled, entropy = ends[name]
        for seed in row.planned:
            noise = rng.normal(0, 25 if argmax < 250 else 6)
            end = -1877.5 if (row.name, seed) == ("grpo", 4) else argmax + 2 * noise
            run, _, _ = lines_of(row.name, seed, end, sampled + noise, max(entropy + rng.normal(0, 0.05), 0.05))
            key = {"row": row.name, "seed": seed}
            curve, progress = [], []
            for steps in range(0, 2_050_000, 50_000):
                done = 1 - math.exp(-steps / 500_000)
                wobble = rng.normal(0, 40 * (1 - done) + 8, size=2)
                curve.append(
                    {
                        **key,
                        "num_steps": steps + (int(rng.integers(20_000)) if steps else 0),
                        "argmax_mean": -600 + (end + 600) * done + wobble[0],
                        "sampled_mean": -180 + (run["sampled_mean"] + 180) * done + wobble[1],
                        "start_entropy": 1.386 + (run["start_entropy"] - 1.386) * done,
                    }
                )
            for share in running.SHARES:
                done = 1 - math.exp(-4 * share)
                stage = dict.fromkeys(PROGRESS_COLUMNS, 0.0)
                stage |= {"argmax_mean": -600 + (end + 600) * done, "argmax_landed": max(min(end / 270, 1), 0) * done}
                progress.append({**stage, "argmax_engine": 20 + 60 * done, **key, "share": share})
            results.add(run, curve, progress)


@pytest.mark.examples
def test_the_report_is_made_from_the_files_alone(tmp_path):
    results = Results(tmp_path / "docs" / "results")
    synthetic(
        results, named(["grpo", "grpo-no*", "process", "critic-free", "critic-free-4x4", "to-go-*", "ppo", "a2c"])
    )
    synthetic(results, named(["search-4x8-cut*"]))
    other = {**dict.fromkeys(environments_rows.COLUMNS, 1.0), "row": "Acrobot-v1-ppo", "seed": 0}
    add_once(results.folder / environments_rows.FILE, environments_rows.COLUMNS, other)
    written = report.write_report(results)
    assert {path.suffix for path in written} == {".md", ".png"}
    for path in written:
        assert path.stat().st_size > 100
    page = (tmp_path / "docs" / "results.md").read_text()
    for name in report.make_tables(results):
        assert f"<!-- table:{name} -->\n| " in page
    for picture in results.folder.glob("*.png"):
        assert f"results/{picture.name}" in page
    again = {path: path.read_bytes() for path in written}
    report.write_report(results)
    assert {path: path.read_bytes() for path in written} == again


def test_a_page_that_is_there_keeps_its_words_and_gets_its_tables(tmp_path):
    results, page = Results(tmp_path / "results"), tmp_path / "results.md"
    results.add(*lines_of("grpo", 0))
    page.write_text(
        "# Ours\n\n<!-- table:headline -->\nold\n<!-- /table -->\n\nText.\n\n<!-- table:search -->\n<!-- /table -->\n"
    )
    report.write_report(results)
    assert page.read_text().startswith("# Ours\n\n<!-- table:headline -->\n| row |")
    assert "old" not in page.read_text()
    assert "\n\nText.\n\n" in page.read_text()
    assert (results.folder / "headline.md").read_text() in page.read_text()


@pytest.mark.parametrize("names", [[], ["grpo"], ["a2c", "critic-free-4x4"], ["search-0995"]])
def test_the_report_of_a_few_rows(tmp_path, names):
    results = Results(tmp_path / "results")
    for name in names:
        results.add(*lines_of(name, 0 if name != "search-0995" else 5))
    written = report.write_report(results)
    assert any(path.suffix == ".png" for path in written) == bool(names)
    assert tables.NONE in (tmp_path / "results.md").read_text()


def test_the_figures_stand_beside_the_published_ones(tmp_path):
    results = Results(tmp_path)
    for seed, value in enumerate((22.5, -126.9, 40.5, -3.0, -1877.5)):
        results.add(*lines_of("grpo", seed, argmax=value))
    table = tables.beside_published(results.runs())
    # The same five numbers give the published mean and standard deviation.
    assert "| `grpo` | final policy, argmax return, mean ± std | -388.9 ± 746.6 | -388.9 ± 746.6 | 5 |" in table
    assert "| best checkpoint, argmax return, mean ± std | 51.0 ± 61.0 |" in table
    row = next(line for line in tables.returns(results.runs(), ROWS).splitlines() if line.startswith("| `grpo` |"))
    # The middle three: (22.5 - 126.9 - 3) / 3 = -35.8.
    assert "| -388.9 ± 746.6 | -35.8 [" in row
    assert row.count("-388.9 ± 746.6") == 2


def test_the_interval_holds_the_middle_and_one_seed_has_none():
    assert spread.Spread((3.0,)).interval is None
    assert str(spread.Spread((3.0,))) == "3.0"
    found = spread.Spread((1.0, 2.0, 3.0, 4.0, 100.0))
    assert found.middle == 3.0
    low, high = found.interval
    assert 1.0 <= low < 3.0 < high <= 100.0
    assert spread.Spread((2.0, 2.0, 2.0)).interval == (2.0, 2.0)


def test_the_search_ranks_what_ran_on_the_choosing_seeds(tmp_path):
    results = Results(tmp_path)
    for name, seed, value in [("search-0995", 5, 10.0), ("search-entropy", 5, 30.0), ("critic-free", 6, 20.0)]:
        results.add(*lines_of(name, seed, argmax=value))
    results.add(*lines_of("critic-free", 0, argmax=1000.0))
    ranked = [line.split("|")[1].strip() for line in tables.searched(results.runs()).splitlines()[2:]]
    assert ranked == ["`search-entropy`", "`critic-free`", "`search-0995`"]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- table:nothing -->\n<!-- /table -->", "no table 'nothing'; there are a, b"),
        ("<!-- table:a -->\ntext", "stands alone"),
        ("<!-- table:a -->\ntext\n<!-- table:b -->\n<!-- /table -->", "stands alone"),
        ("<!-- table:a --><!-- /table -->", "stands alone"),
    ],
)
def test_a_marker_that_fits_nothing_raises(page, message):
    with pytest.raises(ValueError, match=message):
        report.filled(page, {"a": "A", "b": "B"})


def test_markers_take_their_table():
    page = "1\n<!-- table:a -->\n<!-- /table -->\n2\n<!-- table:b -->\nold\n<!-- /table -->\n"
    new = report.filled(page, {"a": r"\1", "b": "B"})
    assert new == "1\n<!-- table:a -->\n\\1\n<!-- /table -->\n2\n<!-- table:b -->\nB\n<!-- /table -->\n"
    assert report.filled(new, {"a": r"\1", "b": "B"}) == new
