import pytest

from grpolib.text.rewards import ExactMatch
from grpolib.text.rewards.columns import column, graded


def test_a_missing_column_names_the_reward_the_column_and_what_there_is():
    with pytest.raises(ValueError, match=r"ExactMatch reads the column 'answer', the data has \['a', 'b'\]"):
        column(ExactMatch(), {"b": [1], "a": [2]}, "answer")


def test_a_row_without_reference_is_not_graded():
    def grade(completion, reference):
        assert reference is not None
        return completion == reference

    assert graded(grade, ["x", "x", "x"], ["x", None, "y"]) == [1.0, None, 0.0]
