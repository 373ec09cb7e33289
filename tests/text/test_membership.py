"""Who belongs to a group is said and never read off a position."""

import pytest
import torch
from helpers import ints
from language_models import Recurrent, policy_of, seed

from grpolib import CompletionSampler, GroupZScore, MinibatchPlan
from grpolib.batch import concatenate

# Divisor G - 1 and nothing added to it: 1, 0, 0, 0 has mean 1/4 and std 1/2; 1, 0, 1 has mean 2/3 and std 1/sqrt 3.
ADVANTAGES = GroupZScore(epsilon=0.0, correction=1)
GOOD, MIXED = [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]


def sample(rewards_of, prompts=("ab", "d"), num_groups=2, group_size=4, first_group=0):
    """A batch whose completions are worth what `rewards_of` says of their prompt, in their order."""

    def reward(prompts, completions):
        seen = dict.fromkeys(prompts, 0)
        scores = []
        for prompt in prompts:
            values = rewards_of[prompt]
            scores.append(values[seen[prompt] % len(values)])
            seen[prompt] += 1
        return scores

    sampler = CompletionSampler(prompts, reward, group_size, max_new_tokens=6)
    return sampler.sample(policy_of(Recurrent()), num_groups, seed(), first_group=first_group)


def of_episodes(batch, advantages):
    return advantages[batch.offsets[:-1]]


def prompts_of(batch):
    ids = batch.inputs.prompts[batch.inputs.prompt_index]
    return [tuple(row[mask].tolist()) for row, mask in zip(ids, batch.inputs.prompt_mask[batch.inputs.prompt_index],
                                                           strict=True)]  # fmt: skip


def test_each_prompt_is_compared_with_itself():
    batch = sample({"ab": GOOD, "d": MIXED})
    advantages = of_episodes(batch, ADVANTAGES(batch))
    by_prompt = {prompt: [] for prompt in prompts_of(batch)}
    for prompt, advantage in zip(prompts_of(batch), advantages.tolist(), strict=True):
        by_prompt[prompt].append(advantage)
    assert by_prompt == {(0, 1): [0.0] * 4, (3,): pytest.approx([-0.5, -0.5, -0.5, 1.5])}


def test_a_prompt_that_is_drawn_twice_makes_two_groups():
    batch = sample({"ab": GOOD + MIXED}, prompts=["ab"])
    torch.testing.assert_close(
        of_episodes(batch, ADVANTAGES(batch)), torch.tensor([0.0, 0.0, 0.0, 0.0, -0.5, -0.5, -0.5, 1.5])
    )


def test_groups_of_uneven_size_keep_their_own_number():
    batch = sample({"ab": [1.0, 0.0, 1.0], "d": [0.0, 1.0, None]}, group_size=3)
    expected = {(0, 1): [0.577350, -1.154701, 0.577350], (3,): [-0.707107, 0.707107, 0.0]}
    first, second = prompts_of(batch)[0], prompts_of(batch)[3]
    torch.testing.assert_close(
        of_episodes(batch, ADVANTAGES(batch)), torch.tensor(expected[first] + expected[second]), atol=1e-6, rtol=0
    )


def test_minibatches_that_cut_groups_change_no_advantage_and_no_prompt():
    batch = sample({"ab": [3.0, 1.0, 4.0, 1.5], "d": [5.0, 9.0, 2.0, 6.0]})
    advantages = ADVANTAGES(batch)
    expected = dict(zip(batch.log_probs.tolist(), advantages.tolist(), strict=True))
    assert len(expected) == batch.num_steps, "log-probabilities name the steps"
    plan = MinibatchPlan(epochs=2, size=3, by="episode")
    seen = 0
    for minibatch in batch.minibatches(advantages, "episode_mean", plan, torch.Generator().manual_seed(0)):
        assert minibatch.advantages.tolist() == [expected[value] for value in minibatch.old_log_probs.tolist()]
        again = policy_of(Recurrent()).evaluate(minibatch.inputs).log_probs
        torch.testing.assert_close(again, minibatch.old_log_probs, atol=1e-5, rtol=0)
        seen += len(minibatch.advantages)
    assert seen == 2 * batch.num_steps


def test_ranks_that_share_a_step_have_the_groups_of_one_alone():
    rewards = {"ab": GOOD, "d": MIXED, "e": [1.0, 2.0, 4.0, 8.0]}
    prompts = list(rewards)
    alone = sample(rewards, prompts, num_groups=3)
    ranks = concatenate([sample(rewards, prompts, 2), sample(rewards, prompts, 1, first_group=2)])
    assert torch.equal(ranks.inputs.tokens, alone.inputs.tokens)
    assert torch.equal(ranks.group_ids, alone.group_ids)
    assert torch.equal(ADVANTAGES(ranks), ADVANTAGES(alone))


def test_completions_in_any_order_are_scored_with_their_own_prompts():
    batch, policy = sample({"ab": GOOD, "d": MIXED}), policy_of(Recurrent())
    interleaved = ints(0, 4, 1, 5, 2, 6, 3, 7)
    log_probs = policy.evaluate(batch.inputs.select_episodes(interleaved)).log_probs
    expected = torch.cat([batch.log_probs[batch.episode_ids == episode] for episode in interleaved])
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)
