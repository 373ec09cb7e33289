import math

import pytest

from grpolib import StepRewards


@pytest.mark.parametrize(
    ("ends", "values", "message"),
    [
        ([1, 2], [1.0], "one per step"),
        ([], [], "one per step"),
        ([2, 2], [1.0, 1.0], "ascend"),
        ([0], [1.0], "ascend"),
        ([1], [math.nan], "finite"),
    ],
)
def test_step_rewards_that_make_no_sense_are_refused(ends, values, message):
    with pytest.raises(ValueError, match=message):
        StepRewards(ends, values)


def test_a_completion_is_worth_its_steps_together():
    assert StepRewards([1, 5], [0.5, -2.0]).total == -1.5
