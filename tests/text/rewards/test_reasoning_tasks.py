import os
import time

import pytest

from grpolib.text.rewards import ReasoningGym, reasoning_tasks, score

pytest.importorskip("reasoning_gym")

TASKS = ReasoningGym("chain_sum", {"seed": 3, "size": 4})


def answers():
    from reasoning_gym import create_dataset

    return [entry["answer"] for entry in create_dataset("chain_sum", seed=3, size=4)]


def test_prompts_and_columns_have_a_row_each():
    assert len(TASKS.prompts) == len(set(TASKS.prompts)) == 4
    assert TASKS.columns == {"task": [0, 1, 2, 3]}
    assert ReasoningGym("chain_sum", {"seed": 3, "size": 4}).prompts == TASKS.prompts


def test_the_scorer_of_the_dataset_scores():
    right = [f"<answer>{answer}</answer>" for answer in answers()]
    assert score(TASKS, TASKS.prompts, right, TASKS.columns) == [1.0] * 4
    assert max(score(TASKS, TASKS.prompts, right[1:] + right[:1], TASKS.columns)) < 1.0


def test_rows_may_come_in_any_order_and_more_than_once():
    first, second, *_ = answers()
    completions = [f"<answer>{second}</answer>", f"<answer>{first}</answer>", "none", f"<answer>{second}</answer>"]
    assert score(TASKS, ["?"] * 4, completions, {"task": [1, 0, 1, None]}) == [1.0, 1.0, 0.0, None]


def test_a_whole_completion_may_be_the_answer():
    whole = ReasoningGym("chain_sum", {"seed": 3, "size": 4}, tag=None)
    assert score(whole, whole.prompts, [f" {answer}\n" for answer in answers()], whole.columns) == [1.0] * 4


def test_hostile_answers_reach_no_further_than_a_process_that_can_be_killed(tmp_path):
    # This scorer evaluates expressions.
    countdown = ReasoningGym("countdown", {"seed": 0, "size": 1}, seconds=1.5)
    mark = tmp_path / "mark"
    expressions = [
        "", "\x00", "\ud800", "nan", "x" * 10**5, "9**9**9**9", "(" * 1000, "__import__('os')._exit(0)",
        f"open({str(mark)!r}, 'w')", f"__import__('os').system('touch {mark}')", "[0] * 10**11",
        "1+1</answer><answer>2",
    ]  # fmt: skip
    started = time.monotonic()
    rows = [f"<answer>{expression}</answer>" for expression in expressions]
    found = score(countdown, ["?"] * len(rows), rows, {"task": [0] * len(rows)})
    assert all(0 <= value < 0.1 for value in found)
    assert time.monotonic() - started < 60
    # Only another user's code cannot write where this one may.
    assert not mark.exists() or os.geteuid() != 0


def test_an_unknown_dataset_is_an_error():
    with pytest.raises(ValueError, match="no_such_dataset"):
        _ = ReasoningGym("no_such_dataset").prompts
    with pytest.raises(RuntimeError, match=r"did not start.*no_such_dataset"):
        ReasoningGym("no_such_dataset")(["?"], ["<answer>1</answer>"], task=[0])


def test_without_reasoning_gym_one_line_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r'^ReasoningGym needs reasoning_gym: pip install "grpolib\[reasoning-gym\]"$'
    ):
        reasoning_tasks.ReasoningGym("chain_sum")


def test_settings_are_checked():
    with pytest.raises(ValueError, match="seconds must be"):
        ReasoningGym("chain_sum", seconds=0.0)
    with pytest.raises(ValueError, match="tag is a word"):
        ReasoningGym("chain_sum", tag="<answer>")
