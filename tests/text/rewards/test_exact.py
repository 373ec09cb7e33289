import pytest

from grpolib.text.rewards import ExactMatch, exact_match, score


def values(reward, completions, answer):
    return score(reward, ["?"] * len(completions), completions, {"answer": answer})


def test_white_space_around_does_not_count():
    assert values(exact_match, ["4", " 4\n", "4", "4 4", "5"], ["4", "4", " 4 ", "44", "4"]) == [1, 1, 1, 0, 0]


def test_no_reference_no_value():
    assert values(exact_match, ["4", "4"], [None, "4"]) == [None, 1.0]


@pytest.mark.parametrize("completion", ["", "44", "4 or 5", "x" * 10**6, "٤", "４", "4\x00", "\ud800", "nan", "inf"])
def test_nothing_but_the_reference_will_do(completion):
    assert values(exact_match, [completion], ["4"]) == [0.0]


def test_letters_that_only_look_alike_are_not_alike():
    # The second is a Cyrillic a; the third e and an accent instead of one letter.
    assert values(exact_match, ["a", "\u0430", "e\u0301"], ["a", "a", "\u00e9"]) == [1.0, 0.0, 0.0]


def test_an_answer_in_a_tag():
    completions = [
        "<answer>4</answer>",
        "4",
        "<answer>5</answer><answer>4</answer>",
        "<answer><answer>4</answer></answer>",
    ]
    assert values(ExactMatch(tag="answer"), completions, ["4"] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_a_reference_cannot_be_met_by_no_answer():
    assert values(ExactMatch(tag="answer"), ["None", ""], ["None", ""]) == [0.0, 0.0]


def test_a_number_may_be_the_reference():
    assert values(exact_match, ["4", "4.0"], [4, 4]) == [1.0, 0.0]


def test_another_column():
    assert score(ExactMatch(reference="solution"), ["?"], ["4"], {"solution": ["4"], "answer": ["5"]}) == [1.0]
    with pytest.raises(ValueError, match="ExactMatch reads the column 'answer'"):
        score(exact_match, ["?"], ["4"], {"solution": ["4"]})
