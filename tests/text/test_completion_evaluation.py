import pytest
import torch
from language_models import Fixed, Letters, Recurrent, policy_of

from grpolib import CausalLMPolicy, StepRewards, evaluate_completions


def is_b(prompts, completions):
    return [float(text == "b") for text in completions]


def test_greedy_and_sampled_side_by_side():
    policy = CausalLMPolicy(Fixed(0.0, 1.0, -9.0), Letters())
    reports = evaluate_completions(policy, ["a"] * 10, is_b, max_new_tokens=1, samples=50)
    assert reports.greedy.mean == 1.0
    assert len(reports.greedy.completions) == 10
    assert len(reports.sampled.completions) == 500
    # e / (e + 1).
    assert abs(reports.sampled.mean - 0.731) < 0.06
    assert str(reports) == f"greedy 1.000, sampled {reports.sampled.mean:.3f}"


def test_sampling_may_be_restricted():
    policy = CausalLMPolicy(Fixed(0.0, 1.0, -9.0), Letters())
    assert evaluate_completions(policy, ["a"] * 30, is_b, max_new_tokens=1, top_k=1).sampled.mean == 1.0


def test_prompts_at_a_time_change_nothing():
    policy = policy_of(Recurrent())
    prompts = ["ab", "d", "eee", "bd", "d"]
    texts = [
        [
            c.text
            for c in evaluate_completions(
                policy, prompts, is_b, max_new_tokens=5, prompts_at_a_time=n
            ).sampled.completions
        ]
        for n in (1, 2, 64)
    ]
    assert texts[0] == texts[1] == texts[2]


def test_what_was_not_scored_stays_out_of_the_mean():
    policy = CausalLMPolicy(Fixed(9.0, 0.0, 0.0), Letters())

    def reward(prompts, completions):
        return [None, StepRewards([1], [3.0]), 1.0]

    report = evaluate_completions(policy, ["a", "b", "d"], reward, max_new_tokens=1).greedy
    assert report.mean == 2.0
    assert torch.isnan(report.rewards[0])


def test_one_stop_string_is_the_same_as_a_list_of_it():
    policy = policy_of(Recurrent())
    texts = [
        [
            c.text
            for c in evaluate_completions(policy, ["ab"] * 9, is_b, max_new_tokens=6, stop=stop).sampled.completions
        ]
        for stop in ("fg", ["fg"])
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("name", "value"), [("max_new_tokens", 0), ("samples", 0), ("prompts_at_a_time", -1), ("seed", -1)]
)
def test_numbers_out_of_range_are_refused_before_anything_is_written(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        evaluate_completions(policy_of(Recurrent()), ["ab"], is_b, **{name: value})
