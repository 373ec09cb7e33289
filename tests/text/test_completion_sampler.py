import math

import pytest
import torch
from language_models import Fixed, Letters, Recurrent, batch_of, policy_of, seed

from grpolib import (
    CausalLMPolicy,
    ClippedSurrogateLoss,
    CompletionSampler,
    GroupZScore,
    GRPOTrainer,
    LeaveOneOut,
    ProcessSupervision,
    StepRewards,
    mlp,
    recipes,
)
from grpolib.text.rewards import Weighted

# Tokens a, b and the end c, equally probable.
THIRDS = (0.0, 0.0, 0.0)


def policy():
    return CausalLMPolicy(Fixed(*THIRDS), Letters())


def sample(reward, group_size=4, num_groups=2, prompts=("a", "b"), **settings):
    sampler = CompletionSampler(prompts, reward, group_size, **{"max_new_tokens": 5, **settings})
    return sampler.sample(policy(), num_groups, seed())


def give(*values):
    return lambda prompts, completions: [values[place % len(values)] for place in range(len(completions))]


def test_a_step_is_a_token_an_episode_a_completion_a_group_a_prompt():
    seen = {}

    def reward(prompts, completions, number):
        seen.update(prompts=prompts, completions=completions, number=number)
        return [float(place) for place in range(len(completions))]

    rows = [{"prompt": "a", "number": 10}, {"prompt": "bb", "number": 20}]
    batch = sample(reward, prompts=rows)
    assert batch.group_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert seen["prompts"] in (["a"] * 4 + ["bb"] * 4, ["bb"] * 4 + ["a"] * 4)
    assert seen["number"] == [{"a": 10, "bb": 20}[prompt] for prompt in seen["prompts"]]
    assert batch.episode_returns.tolist() == list(range(8))
    assert batch.inputs.lengths.tolist() == batch.lengths.tolist()
    lasts = batch.offsets[1:] - 1
    assert batch.rewards[lasts].tolist() == list(range(8))
    assert batch.rewards.sum() == sum(range(8))
    ids = [Letters().encode(prompt) for prompt in seen["prompts"][::4]]
    assert [row[mask].tolist() for row, mask in zip(batch.inputs.prompts, batch.inputs.prompt_mask, strict=True)] == ids
    for episode, text in enumerate(seen["completions"]):
        tokens = batch.inputs.completions[episode][: int(batch.lengths[episode])].tolist()
        assert Letters().decode(tokens).removesuffix("c") == text


def test_a_completion_cut_by_its_length_is_no_end():
    batch = sample(give(0.0), group_size=64, max_new_tokens=2)
    ends = torch.stack(
        [row[mask][-1] for row, mask in zip(batch.inputs.completions, batch.inputs.completion_mask, strict=True)]
    )
    assert torch.equal(batch.terminated, ends == 2)
    assert 0 < int(batch.terminated.sum()) < 128
    assert batch.loss_mask is None


def test_completions_that_were_cut_can_be_left_out_of_the_loss():
    batch = sample(give(0.0, 1.0), group_size=64, max_new_tokens=2, truncated="mask")
    assert torch.equal(batch.loss_mask, batch.terminated[batch.episode_ids])
    assert bool(batch.scored.all())


def test_completions_that_were_cut_can_be_penalised():
    batch = sample(give(1.0), group_size=64, max_new_tokens=2, truncation_penalty=0.25)
    assert torch.equal(batch.episode_returns, torch.where(batch.terminated, 1.0, 0.75))


def test_a_completion_that_cannot_be_scored_leaves_its_group():
    batch = sample(give(None, 1.0, 3.0, 2.0))
    assert batch.scored.tolist() == [False, True, True, True] * 2
    advantages = LeaveOneOut()(batch)[batch.offsets[:-1]]
    # 1 - 2.5, 3 - 1.5, 2 - 2.
    assert advantages.tolist() == [0.0, -1.5, 1.5, 0.0] * 2
    assert bool((batch.counted == batch.scored[batch.episode_ids]).all())


def test_a_group_with_one_scored_completion_learns_nothing():
    batch = sample(give(None, None, None, 5.0))
    assert GroupZScore()(batch).tolist() == [0.0] * batch.num_steps


@pytest.mark.parametrize("value", [0.2, 0.3, 0.7, 1e6])
def test_equal_rewards_are_no_signal(value):
    batch = sample(give(value), group_size=12)
    assert GroupZScore(epsilon=0.0)(batch).tolist() == [0.0] * batch.num_steps


@pytest.mark.parametrize(("correction", "expected"), [(0, 1 / math.sqrt(3)), (1, 0.5)])
def test_the_divisor_of_the_standard_deviation_is_a_choice(correction, expected):
    # Rewards 1, 0, 0, 0: deviations 0.75 and -0.25; variance 3 / 16, or 4 / 16.
    batch = sample(give(1.0, 0.0, 0.0, 0.0))
    advantages = GroupZScore(epsilon=0.0, correction=correction)(batch)[batch.offsets[:-1]]
    assert advantages[1].item() == pytest.approx(-expected)
    assert advantages[0].item() == pytest.approx(3 * expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused_and_named(value):
    with pytest.raises(ValueError, match="<lambda> gave"):
        sample(give(0.0, value))


# What is counted.


def test_the_parts_of_a_reward_are_metrics():
    reward = Weighted({"right": give(1.0, None, 0.0, 0.0), "form": give(1.0)}, {"form": 0.5})
    batch = sample(reward)
    assert batch.episode_returns.tolist() == [1.5, 0.5, 0.5, 0.5] * 2
    assert batch.metrics["reward_right"].tolist() == [1.0, 0.0, 0.0] * 2
    assert batch.metrics["reward_form"].tolist() == [1.0] * 8
    trainer = GRPOTrainer(policy(), CompletionSampler(["a"], reward, 4, max_new_tokens=2), recipe=recipes.text_grpo())
    assert trainer.step()["reward_right"] == pytest.approx(1 / 3)


def test_a_reward_without_parts_is_counted_under_its_own_name():
    def nice(prompts, completions):
        return [2.0, None, StepRewards([1], [3.0]), 0.0]

    batch = sample(nice, num_groups=1, max_new_tokens=1, prompts=["a"])
    assert batch.metrics["reward_nice"].tolist() == [2.0, 3.0, 0.0]


# Rewards of steps.


def test_step_rewards_stand_on_the_tokens_that_end_the_steps():
    def steps(prompts, completions):
        return [StepRewards([1, len(text)], [0.5, 2.0]) if len(text) > 1 else None for text in completions]

    batch = sample(steps, group_size=32)
    for episode in range(batch.num_episodes):
        rows = batch.episode_ids == episode
        written = int(rows.sum()) - int(batch.terminated[episode])  # a letter each; the end is no letter
        expected = [0.0] * int(rows.sum())
        if written > 1:
            expected[0], expected[written - 1] = 0.5, 2.0
        assert batch.rewards[rows].tolist() == expected
        assert batch.reward_mask[rows].tolist() == [value != 0 for value in expected]
    assert ProcessSupervision()(batch).isfinite().all()


def test_a_step_beyond_the_completion_is_refused():
    with pytest.raises(ValueError, match="a step ends at character 99"):
        sample(lambda prompts, completions: [StepRewards([99], [1.0]) for _ in completions])


# What is refused.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, ">= 2 completions"),
        ({"max_new_tokens": 0}, "must be >= 1"),
        ({"groups_at_a_time": 0}, "must be >= 1"),
        ({"truncated": "drop"}, "'keep', 'mask'"),
        ({"truncation_penalty": -1.0}, ">= 0"),
        ({"truncation_penalty": math.inf}, "finite"),
        ({"stop": ""}, "empty string"),
        ({"top_k": 5}, "training samples the whole distribution"),
        ({"top_p": 0.9}, "training samples the whole distribution"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CompletionSampler(["a"], give(0.0), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 2.5}, "group_size is 2.5: give a whole number"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5: give a whole number"),
        ({"stop": [5]}, "a list of strings"),
        ({"reward": [give(0.0)]}, "Weighted"),
        ({"prompts": {"prompt": ["a"]}}, "prompts are a dict"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_settings_of_another_kind_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        CompletionSampler(**{"prompts": ["a"], "reward": give(0.0), **settings})


def test_no_group_is_refused():
    with pytest.raises(ValueError, match="at least one group"):
        sample(give(0.0), num_groups=0)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_policy_that_writes_nothing_is_refused():
    with pytest.raises(TypeError, match="give CausalLMPolicy"):
        CompletionSampler(["a"], give(0.0)).sample(mlp(2, 2), 1, seed())


def test_rows_with_other_columns_are_refused():
    with pytest.raises(ValueError, match="the row of the prompt 'b' has no 'answer'"):
        sample(lambda prompts, completions, answer: [0.0], prompts=[{"prompt": "a", "answer": 1}, {"prompt": "b"}])


# In the trainer.


def test_a_run_leaves_its_metrics_and_its_policy(tmp_path):
    sampler = CompletionSampler(["ab", "d"], give(0.0, 1.0, None), 3, max_new_tokens=4)
    folder = tmp_path / "run"
    trainer = GRPOTrainer(policy_of(Recurrent()), sampler, recipe=recipes.text_grpo(), run_folder=folder)
    trainer.train(iterations=2)
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    assert len(rows) == 2
    assert "unscored_fraction" in header
    assert "kl_reference" in header
    assert (folder / "last" / "policy.safetensors").exists()


def test_the_policy_learns_to_end():
    def short(prompts, completions):
        return [float(len(text) == 0) for text in completions]

    learner = policy()
    recipe = recipes.text_grpo().replaced(
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        groups_per_step=1,
        loss=[ClippedSurrogateLoss()],
        reference=None,
    )
    trainer = GRPOTrainer(learner, CompletionSampler(["a"], short, 16, max_new_tokens=3), recipe=recipe)
    trainer.train(iterations=30)
    assert learner.model.logits.softmax(0)[2] > 0.9


def test_the_same_seed_gives_the_same_run():
    def run():
        learner = policy_of(Recurrent())
        sampler = CompletionSampler(["ab", "d", "e"], lambda prompts, completions: list(map(len, completions)), 3)
        GRPOTrainer(learner, sampler, recipe=recipes.text_grpo(), groups_per_step=2, seed=4).train(iterations=2)
        return torch.cat([parameter.flatten() for parameter in learner.parameters()])

    assert torch.equal(run(), run())


def test_batches_of_many_groups_are_those_of_their_groups():
    one, two = batch_of(policy_of(Recurrent()), num_groups=1), batch_of(policy_of(Recurrent()), num_groups=2)
    assert torch.equal(one.inputs.tokens, two.inputs.select_episodes(torch.arange(4)).tokens)
