import pytest
import torch
from helpers import make_batch
from language_models import Recurrent, policy_of, seed

from grpolib import CompletionSampler, DynamicSampling, GRPOTrainer, recipes
from grpolib.batch import select_groups


def constant_for(silent):
    """Equal rewards for the prompts in `silent`, rewards that differ for the others."""

    def reward(prompts, completions):
        return [0.3 if prompt in silent else float(place) for place, prompt in enumerate(prompts)]

    return reward


def sampler_of(silent, prompts=("a", "b", "d", "e"), **settings):
    inner = CompletionSampler(prompts, constant_for(silent), 3, max_new_tokens=3)
    return DynamicSampling(inner, **settings)


def prompts_of(batch):
    return [int(row[mask][0]) for row, mask in zip(batch.inputs.prompts, batch.inputs.prompt_mask, strict=True)]


def test_groups_with_equal_rewards_are_drawn_again():
    sampler = sampler_of(silent={"a", "d"})
    batch = sampler.sample(policy_of(Recurrent()), 3, seed())
    assert batch.num_groups == 3
    assert set(prompts_of(batch)) <= {1, 4}
    assert float(batch.metrics["dropped_groups"]) >= 1
    assert float(batch.metrics["missing_groups"]) == 0


def test_nothing_is_drawn_again_where_all_groups_differ():
    sampler = sampler_of(silent=set())
    batch, plain = (s.sample(policy_of(Recurrent()), 3, seed()) for s in (sampler, sampler.sampler))
    assert torch.equal(batch.inputs.completions, plain.inputs.completions)
    assert torch.equal(batch.rewards, plain.rewards)
    assert float(batch.metrics["dropped_groups"]) == 0


def test_refills_are_bounded():
    sampler = sampler_of(silent={"a", "b", "d"}, max_refills=1)
    batch = sampler.sample(policy_of(Recurrent()), 4, seed())
    assert set(prompts_of(batch)) == {4}
    assert float(batch.metrics["missing_groups"]) == 4 - batch.num_groups > 0


def test_where_no_group_differs_the_first_ones_are_kept():
    sampler = sampler_of(silent={"a", "b", "d", "e"}, max_refills=2)
    batch = sampler.sample(policy_of(Recurrent()), 2, seed())
    assert batch.num_groups == 2
    assert float(batch.metrics["dropped_groups"]) == 6
    assert float(batch.metrics["missing_groups"]) == 2


def test_what_could_not_be_scored_makes_no_difference():
    def reward(prompts, completions):
        return [(None, 1.0, 1.0)[place % 3] for place in range(len(completions))]

    sampler = DynamicSampling(CompletionSampler(["a"], reward, 3, max_new_tokens=3), max_refills=1)
    batch = sampler.sample(policy_of(Recurrent()), 1, seed())
    assert float(batch.metrics["missing_groups"]) == 1


def test_differences_within_the_tolerance_count_as_none():
    def reward(prompts, completions):
        return [0.01 * (place % 3) for place in range(len(completions))]

    for tolerance, missing in ((0.03, 1.0), (0.015, 0.0)):
        inner = CompletionSampler(["a"], reward, 3, max_new_tokens=3)
        sampler = DynamicSampling(inner, tolerance=tolerance, max_refills=1)
        batch = sampler.sample(policy_of(Recurrent()), 1, seed())
        assert float(batch.metrics["missing_groups"]) == missing


def test_the_counts_are_logged():
    sampler = sampler_of(silent={"a", "d"})
    metrics = GRPOTrainer(policy_of(Recurrent()), sampler, recipe=recipes.text_grpo(), groups_per_step=2).step()
    assert metrics["missing_groups"] == 0
    assert metrics["degenerate_fraction"] == 0
    assert sampler.max_length == 3
    sampler.close()


@pytest.mark.parametrize("settings", [{"tolerance": -1.0}, {"max_refills": 0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="must be >= 0 and >= 1"):
        sampler_of(silent=set(), **settings)


def test_selected_groups_are_counted_anew():
    batch = make_batch((2, 1, 3, 1), group_ids=(0, 1, 1, 2))
    part = select_groups(batch, torch.tensor([2, 1]))
    assert part.lengths.tolist() == [1, 1, 3]
    assert part.group_ids.tolist() == [0, 1, 1]
    assert part.inputs.actions.tolist() == [6, 2, 3, 4, 5]
    assert part.rewards.tolist() == [7, 3, 4, 5, 6]
