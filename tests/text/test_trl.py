"""Losses and gradients that TRL's own trainer computed: examples/benchmarks/trl_vectors.py wrote them."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpolib import K3, CausalLMPolicy, ClippedSurrogateLoss, Minibatch, TokenInputs, step_weights

TRL = json.loads((Path(__file__).parents[1] / "golden" / "trl.json").read_text())
REDUCTIONS = {"grpo": "episode_mean", "bnpo": "step_mean", "dapo": "step_mean", "dr_grpo": "constant"}
LEVELS = {"token": "step", "sequence": "episode_mean"}


def policy_of(**settings):
    model = LlamaForCausalLM(LlamaConfig(**TRL["model"]))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            values = 0.3 * torch.sin(12.9898 * places + number) + (1.0 if parameter.ndim == 1 else 0.0)
            parameter.copy_(values.reshape(parameter.shape))
    return CausalLMPolicy(model, **settings)


def inputs_of():
    completions = [ids for group in TRL["completions"] for ids in group]
    return TokenInputs.of(TRL["prompts"], completions, [0] * 4 + [1] * 4)


def minibatch_of(case):
    inputs = inputs_of()
    return Minibatch(
        inputs=inputs,
        old_log_probs=torch.tensor(TRL["old_log_probs"]),
        reference_log_probs=torch.tensor(TRL["reference_log_probs"]),
        advantages=torch.tensor(TRL["advantages"]).repeat_interleave(inputs.lengths),
        weights=step_weights(inputs.lengths, REDUCTIONS[case["loss_type"]], max_length=TRL["max_length"]),
        lengths=inputs.lengths,
    )


def losses_of(case):
    level = LEVELS[case["level"]]
    losses = [ClippedSurrogateLoss(ratio_level=level)]
    if case["beta"]:
        corrected = case["use_bias_correction_kl"]
        kl = K3(case["beta"], gradient="reverse_kl", ratio_level=level) if corrected else K3(case["beta"])
        losses.append(kl)
    return losses


def case_name(case):
    return "-".join(str(case[name]) for name in ("loss_type", "level", "beta", "use_bias_correction_kl"))


def total(losses, policy, minibatch):
    evaluation = policy.evaluate(minibatch.inputs)
    return torch.stack([loss(evaluation, minibatch).loss for loss in losses]).sum()


def test_the_same_completions_have_the_same_log_probabilities_and_entropies():
    evaluation = policy_of().evaluate(inputs_of())
    torch.testing.assert_close(evaluation.log_probs, torch.tensor(TRL["log_probs"]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(evaluation.entropy, torch.tensor(TRL["entropy"]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [10, 10_000])
@pytest.mark.parametrize("case", TRL["cases"], ids=case_name)
def test_loss_and_gradient(case, tokens):
    policy = policy_of(tokens_per_micro_batch=tokens)
    minibatch = minibatch_of(case)
    parts = [minibatch.select_episodes(some) for some in policy.micro_batches(minibatch.inputs)]
    assert (len(parts) > 1) == (tokens == 10)
    loss = sum(total(losses_of(case), policy, part) for part in parts)
    assert loss.item() == pytest.approx(case["loss"], rel=1e-5, abs=1e-5)
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    for number, gradient in enumerate(gradients):
        direction = torch.cos(3.7 * torch.arange(gradient.numel(), dtype=torch.float64))
        assert gradient.double().norm().item() == pytest.approx(case["norms"][number], rel=1e-5, abs=1e-5)
        product = (gradient.double().flatten() @ direction).item()
        assert product == pytest.approx(case["products"][number], rel=1e-5, abs=1e-5)


def test_the_cases_differ():
    # bnpo and dapo are one loss where nothing is accumulated; all else is another number.
    seen = {(round(case["loss"], 7), round(case["norms"][0], 7)) for case in TRL["cases"]}
    assert len(seen) == 3 * 2 * 3
