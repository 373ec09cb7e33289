import asyncio
import math

import pytest

from grpolib import StepRewards
from grpolib.text.scores import scores_of


def scored(reward, columns=None, completions=("a", "b")):
    return scores_of(reward, ["p"] * len(completions), completions, columns or {})


def test_a_reward_is_called_with_lists_and_columns():
    def reward(prompts, completions, answer):
        assert prompts == ["p", "p"]
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    assert scored(reward, {"answer": ["a", "a"]}) == [1.0, 0.0]


def test_a_reward_may_be_awaited():
    async def reward(prompts, completions):
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    assert scored(reward) == [1.0, 1.0]

    async def in_a_notebook():
        return scored(reward)

    assert asyncio.run(in_a_notebook()) == [1.0, 1.0]


@pytest.mark.parametrize("value", [1, True, 1.0])
def test_numbers_become_floats(value):
    scores = scored(lambda prompts, completions: [value, None])
    assert scores == [1.0, None]
    assert isinstance(scores[0], float)


def too_few(prompts, completions):
    return [1.0]


def words(prompts, completions):
    return ["good", "bad"]


def nothing(prompts, completions):
    return None


def infinite(prompts, completions):
    return [1.0, math.inf]


@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (too_few, ValueError, "the reward too_few gave 1 values for 2 completions: expected one each"),
        (words, TypeError, "the reward words gave 'good' for the completion 'a': expected a number"),
        (nothing, TypeError, "the reward nothing gave None: expected a list of 2 values"),
        (infinite, ValueError, "the reward infinite gave inf for the completion 'b': rewards are finite"),
    ],
)
def test_what_is_no_reward_is_named(reward, error, message):
    with pytest.raises(error, match=message):
        scored(reward)


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
