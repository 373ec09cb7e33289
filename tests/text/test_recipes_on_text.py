"""Every recipe trains a language model, and an average is what its name says, whole or in micro-batches."""

import pytest
import torch
from helpers import ints
from language_models import Letters, Recurrent, policy_of

from grpolib import (
    CausalLMPolicy,
    ClippedSurrogateLoss,
    CompletionSampler,
    DynamicSampling,
    GroupBatch,
    GRPOTrainer,
    MinibatchPlan,
    StepRewards,
    TokenInputs,
    recipes,
)


def late_letters(prompts, completions):
    return [float(sum(letter > "m" for letter in text)) for text in completions]


def halves(prompts, completions):
    return [StepRewards([1], [float(text[0] > "m")]) if text else None for text in completions]


@pytest.mark.parametrize(
    "name",
    [
        "text_grpo",
        "rloo",
        "dr_grpo",
        "dapo",
        "gspo",
        "cispo",
        "reinforce_plus_plus",
        "sequence_grpo",
        "process_supervision",
        "like_trl",
        "like_verl",
        "like_openrlhf",
    ],
)
def test_every_recipe_moves_a_language_model(name):
    policy = policy_of(Recurrent())
    reward = halves if name == "process_supervision" else late_letters
    sampler = DynamicSampling(CompletionSampler(["ab", "d", "e"], reward, 6, max_new_tokens=5))
    before = [parameter.clone() for parameter in policy.parameters()]
    trainer = GRPOTrainer(policy, sampler, recipe=getattr(recipes, name)())
    metrics = trainer.step()
    assert metrics["grad_norm"] > 0
    assert any(not torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-2)


class Table(torch.nn.Module):
    """The logits of the t-th token after the prompt are the t-th row: every log-probability has its own parameters."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.zeros(2, 4, 2))

    def forward(self, ids, mask):
        return self.rows[ids[:, 0]][:, : ids.shape[1]]


@pytest.mark.parametrize("tokens", [1, 1000])
@pytest.mark.parametrize(
    ("reduction", "level", "loss", "first", "second"),
    [
        ("episode_mean", "step", 0.0, -1 / 2, 1 / 6),
        ("step_mean", "step", 0.5, -1 / 4, 1 / 4),
        ("constant", "step", 0.25, -1 / 8, 1 / 8),
        ("episode_mean", "episode_mean", 0.0, -1 / 2, 1 / 6),
    ],
)
def test_the_averages_of_two_completions(reduction, level, loss, first, second, tokens):
    # A completion of 1 token with advantage 1 and one of 3 with advantage -1, at most 4 tokens long.
    policy = CausalLMPolicy(Table(), Letters(), tokens_per_micro_batch=tokens)
    inputs = TokenInputs.of([[0], [1]], [[0], [1, 1, 1]], [0, 1])
    lengths = ints(1, 3)
    batch = GroupBatch(
        inputs=inputs,
        log_probs=policy.evaluate(inputs).log_probs.detach(),
        rewards=torch.zeros(4),
        lengths=lengths,
        group_ids=ints(0, 1),
        terminated=torch.ones(2, dtype=torch.bool),
    )
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0])
    plan = MinibatchPlan(epochs=1, size=None, by="episode")
    (minibatch,) = batch.minibatches(advantages, reduction, plan, torch.Generator(), max_length=4)
    parts = [minibatch.select_episodes(some) for some in policy.micro_batches(minibatch.inputs)]
    assert len(parts) == (2 if tokens == 1 else 1)
    outputs = [ClippedSurrogateLoss(ratio_level=level)(policy.evaluate(part.inputs), part).loss for part in parts]
    total = torch.stack(outputs).sum()
    assert total.item() == pytest.approx(loss, abs=1e-6)
    (gradient,) = torch.autograd.grad(total, policy.model.rows)
    # d log p / d logit of the token itself is 1 - 1/2.
    assert gradient[0, 0, 0].item() == pytest.approx(first / 2, abs=1e-6)
    assert gradient[1, :3, 1].tolist() == pytest.approx([second / 2] * 3, abs=1e-6)


def test_a_batch_in_which_nothing_counts_changes_nothing():
    policy = policy_of(Recurrent())
    before = [parameter.clone() for parameter in policy.parameters()]
    sampler = CompletionSampler(["ab"], lambda prompts, completions: [None] * len(completions), 3, max_new_tokens=3)
    metrics = GRPOTrainer(policy, sampler, recipe=recipes.text_grpo(), groups_per_step=2).step()
    assert metrics["updates"] == 0
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))
