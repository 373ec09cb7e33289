import asyncio
import math

import pytest

from grpolib.text.rewards import ExactMatch, StepRewards, Weighted, score, score_parts


def gives(*values):
    return lambda **_: list(values)


def rows(count):
    return ["?"] * count, ["!"] * count


def test_parts_are_weighted_and_summed():
    reward = Weighted({"correct": gives(1, 0, 1), "form": gives(1, 1, 0), "length": gives(-1, 0, 0)}, {"form": 0.5})
    # 1 + 0.5 - 1, 0 + 0.5 + 0, 1 + 0 + 0.
    assert reward(*rows(3)) == [0.5, 0.5, 1.0]


def test_columns_reach_the_parts():
    reward = Weighted({"correct": ExactMatch(), "other": ExactMatch(reference="other")}, {"other": 10.0})
    assert reward(["?"] * 2, ["a", "b"], answer=["a", "a"], other=["a", "b"]) == [11.0, 10.0]


def test_a_part_that_does_not_apply_is_left_out():
    reward = Weighted({"a": gives(1, None, None), "b": gives(2, 2, None)}, {"b": 0.5})
    assert reward(*rows(3)) == [2.0, 1.0, None]


def test_a_part_that_does_not_apply_may_take_the_whole_with_it():
    reward = Weighted({"a": gives(1, None, None), "b": gives(2, 2, None)}, missing="none")
    assert reward(*rows(3)) == [3.0, None, None]


def test_a_weight_of_zero_only_watches():
    reward = Weighted({"a": gives(1.0), "watched": gives(5.0)}, {"watched": 0.0})
    assert score_parts(reward, *rows(1), {}) == ([1.0], {"a": [1.0], "watched": [5.0]})


def test_parts_may_be_async_also_where_a_loop_runs():
    async def slow(completions, **_):
        await asyncio.sleep(0)
        return [2.0] * len(completions)

    async def program():
        return score(Weighted({"slow": slow, "fast": gives(1.0)}), *rows(1), {})

    assert asyncio.run(program()) == [3.0]


def test_a_bad_part_is_named():
    def short(**_):
        return [1.0]

    with pytest.raises(ValueError, match="short gave 1 values for 2 completions"):
        Weighted({"fine": gives(0.0, 0.0), "bad": short})(*rows(2))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="needs a reward"):
        Weighted({})
    with pytest.raises(ValueError, match=r"weights of \['b'\], which are not among the rewards \['a'\]"):
        Weighted({"a": gives(1.0)}, {"b": 1.0})
    for weight in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            Weighted({"a": gives(1.0)}, {"a": weight})


@pytest.mark.usefixtures("without_shape_hook")
def test_an_unknown_way_to_treat_missing_parts_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"missing is 'zero': choose one of \('leave_out', 'none'\)"):
        Weighted({"a": gives(1.0)}, missing="zero")


def test_the_parts_of_a_single_reward_are_itself():
    assert score_parts(ExactMatch(), ["?"], ["a"], {"answer": ["a"]}) == ([1.0], {"ExactMatch": [1.0]})


def test_steps_are_worth_their_sum_among_the_parts_and_have_no_weighted_sum():
    steps = StepRewards([1], [3.0])
    assert score_parts(gives(steps), *rows(1), {}) == ([steps], {"<lambda>": [3.0]})
    with pytest.raises(TypeError, match=r"'steps' gave StepRewards\(.*\) for completion 0: Weighted adds numbers"):
        Weighted({"steps": gives(steps)})(*rows(1))


def test_a_sum_that_overflows_is_no_value():
    with pytest.raises(ValueError, match="Weighted gave inf"):
        score_parts(Weighted({"a": gives(1e308)}, {"a": 10.0}), *rows(1), {})


def test_parts_are_called_once():
    calls = []

    def counting(completions, **_):
        calls.append(len(completions))
        return [1.0]

    score_parts(Weighted({"a": counting}), *rows(1), {})
    assert calls == [1]


def test_rewards_nest():
    inner = Weighted({"a": gives(1.0), "b": gives(2.0)})
    assert score_parts(Weighted({"inner": inner}, {"inner": 2.0}), *rows(1), {}) == ([6.0], {"inner": [3.0]})
