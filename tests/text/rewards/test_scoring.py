import asyncio
import math
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch

from grpolib.text.rewards import StepRewards, score


def gives(values):
    def answers(prompts, completions, **columns):
        return values

    return answers


def scored(values, count=2):
    return score(gives(values), ["?"] * count, ["!"] * count, {})


# What a reward is called with.


def test_prompts_completions_and_columns_come_by_name():
    def reward(completions, answer, prompts, **others):
        assert sorted(others) == ["level"]
        return [float(prompt + completion == expected) for prompt, completion, expected in
                zip(prompts, completions, answer, strict=True)]  # fmt: skip

    assert score(reward, ["1", "2"], ["a", "b"], {"answer": ["1a", "1b"], "level": [1, 2]}) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("prompts", "columns", "name"), [(["?"], {}, "prompts"), (["?", "?"], {"answer": ["a", "b", "c"]}, "answer")]
)
def test_rows_of_another_number_are_named(prompts, columns, name):
    with pytest.raises(ValueError, match=rf"'{name}' has {len(columns.get(name, prompts))} items for 2 completions"):
        score(gives([0.0, 0.0]), prompts, ["a", "b"], columns)


def test_what_a_reward_does_to_its_lists_reaches_nobody():
    def careless(prompts, completions, answer):
        for items in (prompts, completions, answer):
            items.clear()
        return [0.0, 1.0]

    prompts, completions, answer = ["?", "?"], ["a", "b"], ["c", "d"]
    assert score(careless, prompts, completions, {"answer": answer}) == [0.0, 1.0]
    assert (prompts, completions, answer) == (["?", "?"], ["a", "b"], ["c", "d"])


def test_a_program_that_exits_is_an_error_and_not_the_end_of_the_run():
    def runs(prompts, completions, **columns):
        return [exec(program) for program in completions]

    async def waits(prompts, completions, **columns):
        return runs(prompts, completions)

    for reward in (runs, waits):
        with pytest.raises(RuntimeError, match=r"asked Python to exit \(0\)"):
            score(reward, ["?"], ["raise SystemExit(0)"], {})


# What it gives.


def test_numbers_of_every_kind_become_floats():
    values = scored(
        [1, True, np.float32(0.5), np.bool_(True), np.int64(3), torch.tensor(0.25), Fraction(1, 2), None], 8
    )
    assert values == [1.0, 1.0, 0.5, 1.0, 3.0, 0.25, 0.5, None]
    assert {type(value) for value in values} == {float, type(None)}


@pytest.mark.parametrize("values", [(1.0, 0.0), np.array([1.0, 0.0]), torch.tensor([1.0, 0.0])])
def test_any_sized_row_of_numbers_will_do(values):
    assert scored(values) == [1.0, 0.0]


def test_steps_may_have_rewards_of_their_own():
    steps = StepRewards([1], [0.5])
    assert scored([steps, None]) == [steps, None]


def test_no_completions_have_no_values():
    assert scored([], 0) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_count_names_the_function(count):
    with pytest.raises(ValueError, match=f"answers gave {count} values for 2 completions"):
        scored([0.0] * count)


@pytest.mark.parametrize(
    "values", [1.0, None, "ab", b"ab", {0: 1.0, 1: 2.0}, iter([1.0, 2.0]), {1.0, 2.0}, torch.tensor(1.0)]
)
def test_what_is_no_list_names_the_function_and_what_it_gave(values):
    with pytest.raises(TypeError, match=rf"answers gave .*\({type(values).__name__}\): expected a list of 2 numbers"):
        scored(values)


@pytest.mark.parametrize("value", ["1.0", [1.0], 1j, object(), "x" * 1000, torch.ones(2), np.ones(2)])
def test_what_is_no_number_names_the_row(value):
    with pytest.raises(TypeError, match=rf"answers gave .{{1,80}} \({type(value).__name__}\) for completion 1"):
        scored([0.0, value])


TOO_LARGE = 10**5000  # also to be written out


@pytest.mark.parametrize("number", range(6))
def test_what_is_not_finite_never_passes(number):
    value = [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.inf), TOO_LARGE][number]
    with pytest.raises(ValueError, match="for completion 1: expected a finite number"):
        scored([0.0, value])


def test_what_a_reward_raises_is_raised():
    def broken(completions, **_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        score(broken, ["?"], ["!"], {})


# Async rewards.


async def slowly(completions, answer, **_):
    await asyncio.sleep(0.001)
    return [float(text == expected) for text, expected in zip(completions, answer, strict=True)]


def both(reward):
    return score(reward, ["?", "?"], ["a", "b"], {"answer": ["a", "a"]})


def test_an_async_reward_is_awaited():
    assert both(slowly) == [1.0, 0.0]


def test_an_async_reward_is_awaited_where_a_loop_runs_already():
    async def program():
        return both(slowly)

    assert asyncio.run(program()) == [1.0, 0.0]


def test_an_async_reward_is_awaited_in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(both(slowly)))
    thread.start()
    thread.join()
    assert found == [[1.0, 0.0]]


def test_an_object_may_be_async():
    class Slow:
        async def __call__(self, completions, **_):
            return [0.5] * len(completions)

    assert both(Slow()) == [0.5, 0.5]


@pytest.mark.parametrize("running", [False, True])
def test_what_an_async_reward_raises_or_gives_wrongly_is_an_error_too(running):
    async def broken(**_):
        raise KeyError("mine")

    async def short(**_):
        return [1.0]

    def run(reward):
        async def program():
            return both(reward)

        return asyncio.run(program()) if running else both(reward)

    with pytest.raises(KeyError, match="mine"):
        run(broken)
    with pytest.raises(ValueError, match="short gave 1 values"):
        run(short)
