import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpolib.text.rewards import NumberEquals, score
from grpolib.text.rewards.numeric import LONGEST, last_number, parse_number


def values(completions, answer, **settings):
    answers = [answer] * len(completions)
    return score(NumberEquals(**settings), ["?"] * len(completions), completions, {"answer": answers})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000),
        ("1,000", 1000),
        ("-1,234,567.50", Fraction("-1234567.5")),
        (" +3 ", 3),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1/2", Fraction(1, 2)),
        ("-1/2", Fraction(-1, 2)),
        ("1.5/0.5", 3),
        ("1e3", 1000),
        ("2.5E-1", Fraction(1, 4)),
        ("\u22125", -5),
        ("007", 7),
    ],
)
def test_numbers(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-", ".", "e5", "1,00", "1,0000", ",100", "1000,000", "1.000,5", "1/0", "1//2", "1/2/3", "/2", "1/",
        "1 / 2", "nan", "NaN", "inf", "-Infinity", "0x10", "1_000", "1e1000", "1e999999999", "--1", "1+1", "(1)", "$5",
        "5%", "٣", "３", "²", "½", "1\u066c000", "one", "10**9", "9" * (LONGEST + 1), "1\x00", "[1]", "1.2.3",
    ],
)  # fmt: skip
def test_no_numbers(text):
    assert parse_number(text) is None


@given(st.fractions())
def test_a_fraction_is_itself(number):
    text = str(number)
    assert parse_number(text) == (number if len(text) <= LONGEST else None)


@given(st.integers(-(10**30), 10**30))
def test_commas_change_nothing(number):
    assert parse_number(f"{number:,}") == parse_number(str(number)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So it is 4.", 4),
        ("3 apples cost $1,250.", 1250),
        ("5, then 6, then", 6),
        ("10-3", 3),
        ("x = -3", -3),
        ("the half: 1/2!", Fraction(1, 2)),
        ("4 and then ٣", 4),
        ("nothing", None),
        ("", None),
        ("1,00", None),
        ("first 7 then " + "9" * 1000, None),
    ],
)
def test_the_last_number(text, number):
    assert last_number(text) == number


@given(st.text(max_size=200))
def test_any_text_has_a_last_number_or_none(text):
    assert last_number(text) is None or isinstance(last_number(text), Fraction)
    parse_number(text)


@pytest.mark.parametrize("part", ["1", "1,", "1,000,", "1.", "1e", "1/", "-", "1-", "1 ", ",", "1,0000"])
def test_every_text_is_read_in_linear_time(part):
    started = time.process_time()
    last_number(part * 100_000)
    assert time.process_time() - started < 3.0


def test_equal_numbers():
    assert values(["It is 0.5", "1/2", "so 2/4.", "0.50", "5e-1", "0.51", "half"], "1/2") == [1, 1, 1, 1, 1, 0, 0]
    assert values(["1,000", "1000", "1000.0", "1,0,0,0", "100"], "1000") == [1, 1, 1, 0, 0]
    assert values(["0.1"], 0.1) == values(["0.1"], "0.1") == values(["3"], 3) == [1.0]


def test_only_the_last_number_counts():
    assert values(["4 or 5", "5 or 4"], "4") == [0.0, 1.0]


def test_a_tag_holds_one_number_and_nothing_else():
    texts = ["<answer>1,000</answer>", "<answer>x=1000</answer>", "<answer>1 1000</answer>", "1000", "",
             "<answer>1000</answer><answer>1000</answer>", "<answer><answer>1000</answer></answer>"]  # fmt: skip
    assert values(texts, "1000", tag="answer") == [1, 0, 0, 0, 0, 0, 0]


def test_nothing_is_evaluated():
    assert values(["<answer>__import__('os').getpid()</answer>", "<answer>2*2</answer>"], "4", tag="answer") == [0, 0]


def test_a_tolerance_is_relative_to_the_reference():
    assert values(["101", "99", "101.1", "-100"], "100", relative_tolerance=0.01) == [1, 1, 0, 0]
    assert values(["0", "0.001"], "0", relative_tolerance=0.01) == [1.0, 0.0]


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_has_bounds(tolerance):
    with pytest.raises(ValueError, match=r"relative_tolerance must be in \[0, 1\)"):
        NumberEquals(relative_tolerance=tolerance)


@pytest.mark.parametrize("answer", ["four", float("nan"), float("inf"), ""])
def test_a_reference_that_is_no_number_is_an_error(answer):
    with pytest.raises(ValueError, match="is no number; None stands for no reference"):
        values(["4"], answer)


def test_no_reference_no_value():
    assert values(["4"], None) == [None]
