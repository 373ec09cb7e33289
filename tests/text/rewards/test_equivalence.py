import threading
import time

import pytest

from grpolib.text.rewards import MathEquivalence, equivalence, score

pytest.importorskip("math_verify")


def values(reward, completions, answers):
    return score(reward, ["?"] * len(completions), completions, {"answer": answers})


RIGHT = [
    (r"so \boxed{\frac{1}{2}}", "0.5"),
    ("The answer is 1/2.", r"\frac{1}{2}"),
    (r"\boxed{x^2 + 2x + 1}", "(x+1)^2"),
    (r"\boxed{1,000}", "1000"),
    (r"\boxed{\{2, 1\}}", r"\{1, 2\}"),
    (r"\boxed{\sqrt{8}}", r"$2\sqrt{2}$"),
    (r"first $x = 3$, in the end \boxed{4}", "4"),
]
WRONG = [
    ("", "4"),
    (r"\boxed{}", "4"),
    (r"\boxed{5}", "4"),
    (r"\boxed{4} or \boxed{5}", "4"),
    (r"\boxed{4}, \boxed{5}, \boxed{6}", "4"),
    (r"\boxed{4} so the answer is \boxed{5}", "4"),
    ("nan", "4"),
    (r"\boxed{\infty}", "4"),
    (r"\boxed{nan}", "4"),
    (r"\boxed{٥}", "4"),
    (r"\boxed{" * 500 + "5" + "}" * 500, "4"),
    ("x" * 10**5, "4"),
    ("\x00\ud800", "4"),
    (r"\boxed{__import__('os').kill(0, 9)}", "4"),
]


def test_equal_and_unequal_expressions():
    rows = [*RIGHT, *WRONG]
    found = values(MathEquivalence(), [text for text, _ in rows], [answer for _, answer in rows])
    assert dict(zip(rows, found, strict=True)) == {**dict.fromkeys(RIGHT, 1.0), **dict.fromkeys(WRONG, 0.0)}


def test_an_answer_in_a_tag_is_one_expression():
    texts = ["<answer>x^2+2x+1</answer>", r"<answer>\boxed{(1+x)^2}</answer>", "(x+1)^2", "<answer>x</answer>",
             "<answer>(x+1)^2</answer><answer>(x+1)^2</answer>", "<answer></answer>"]  # fmt: skip
    assert values(MathEquivalence(tag="answer"), texts, ["(x+1)^2"] * 6) == [1, 1, 0, 0, 0, 0]


def test_no_reference_and_one_that_is_not_understood_have_no_value():
    assert values(MathEquivalence(), ["4", "4", "4", "4"], [None, "", "$$", 4]) == [None, None, None, 1.0]


@pytest.mark.parametrize("hostile", [r"$10^{10^{10^{10}}}$", r"\boxed{9^{9^{9^9}} \mod 7}"])
def test_an_expression_without_end_costs_its_time_and_no_more(hostile):
    started = time.monotonic()
    assert values(MathEquivalence(seconds=1.5), [hostile, r"\boxed{4}"], ["4", "4"]) == [0.0, 1.0]
    assert time.monotonic() - started < 20


def test_time_is_kept_outside_the_main_thread():
    found = []
    texts = [r"$10^{10^{10^{10}}}$", r"\boxed{4}"]
    thread = threading.Thread(target=lambda: found.append(values(MathEquivalence(seconds=1.5), texts, ["4", "4"])))
    thread.start()
    thread.join()
    assert found == [[0.0, 1.0]]


def test_without_math_verify_one_line_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'^MathEquivalence needs math_verify: pip install "grpolib\[text\]"$'):
        equivalence.MathEquivalence()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="seconds must be"):
        MathEquivalence(seconds=0.0)
    with pytest.raises(ValueError, match="tag is a word"):
        MathEquivalence(tag="<answer>")
