import re
import time

import pytest

from grpolib.text.rewards import FullMatch, ThinkAnswer, score


def values(reward, *completions):
    return score(reward, ["?"] * len(completions), list(completions), {})


GOOD = "<think>2 + 2</think><answer>4</answer>"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "<think>\n2 + 2\n</think>\n\n<answer>\n4\n</answer>\n",
        " \n<think></think> <answer></answer> ",
        "<think>a < b, <b>x</b></think><answer><b>4</b></answer>",
        "<think>思考 ٣</think><answer>四</answer>",
    ],
)
def test_thinking_then_answering(text):
    assert values(ThinkAnswer(), text) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "<answer>4</answer>",
        "<think>2 + 2</think>",
        "<think>2 + 2</think>4",
        "<answer>4</answer><think>2 + 2</think>",
        "<think>2 + 2<answer>4</answer></think>",
        "<think>2 + 2<answer></think>4</answer>",
        "<think>2 + 2</think><answer>4",
        "2 + 2</think><answer>4</answer>",
        "<think>2 + 2</think> so <answer>4</answer>",
        "Well. " + GOOD,
        GOOD + " Done.",
        GOOD + GOOD,
        f"<think>{GOOD}</think><answer>4</answer>",
        "<think><think>2</think></think><answer>4</answer>",
        "<think>2</think><answer><answer>4</answer></answer>",
        "<think>2</think><answer>4</answer></answer>",
        "</think>2<think></answer>4<answer>",
        "<THINK>2</THINK><ANSWER>4</ANSWER>",
        "<think >2</think><answer>4</answer>",
        "<think>2</think>\x00<answer>4</answer>",
    ],
)
def test_anything_else(text):
    assert values(ThinkAnswer(), text) == [0.0]


def test_a_prompt_may_open_the_thinking():
    texts = ["2 + 2</think><answer>4</answer>", GOOD, "<answer>4</answer>"]
    assert values(ThinkAnswer(prompt_opens=True), *texts) == [1.0, 0.0, 0.0]


def test_long_texts_are_read_quickly():
    texts = [tag * 300_000 for tag in ("<think>", "</answer>", "<think></think>", GOOD, "<")]
    started = time.process_time()
    assert values(ThinkAnswer(), *texts) == [0.0] * 5
    assert time.process_time() - started < 3


def test_a_whole_text_matches():
    assert values(FullMatch(r"\d+"), "42", "42!", "a42", "", "42\n") == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_flags_are_those_of_re():
    assert values(FullMatch("a.b"), "a\nb", "A b") == [0.0, 0.0]
    assert values(FullMatch("a.b", re.DOTALL | re.IGNORECASE), "a\nb", "A b") == [1.0, 1.0]
    # Arabic digits are digits unless the flag says otherwise.
    assert values(FullMatch(r"\d"), "٣") == [1.0]
    assert values(FullMatch(r"\d", re.ASCII), "٣") == [0.0]


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(.*a){25}b", "(a*)*b"])
def test_a_text_made_for_the_pattern_costs_its_time_and_no_more(pattern):
    started = time.monotonic()
    assert values(FullMatch(pattern, seconds=0.3), "a" * 5000, "b", "a" * 200)[::2] == [0.0, 0.0]
    assert time.monotonic() - started < 8


def test_settings_are_checked():
    with pytest.raises(ValueError, match="no regular expression: missing"):
        FullMatch("(a")
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="seconds must be > 0 and finite"):
            FullMatch("a", seconds=seconds)
