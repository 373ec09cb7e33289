import copy
import dataclasses
import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from helpers import ints
from language_models import EOS, SHARING, Fixed, Keeping, Letters, Recurrent, batch_of, gpt2, llama, policy_of, seed
from torch import nn

from grpolib import (
    K3,
    CausalLMPolicy,
    ClippedSurrogateLoss,
    CompletionSampler,
    GRPOTrainer,
    MinibatchPlan,
    ReferencePolicy,
    TokenInputs,
    recipes,
)

BUILD = {**SHARING, "module": Recurrent}


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_what_was_sampled_is_scored_the_same(build, temperature):
    policy = policy_of(build(), temperature=temperature)
    batch = batch_of(policy, num_groups=4, max_new_tokens=12)
    log_probs = policy.evaluate(batch.inputs).log_probs.detach()
    torch.testing.assert_close(log_probs, batch.log_probs, atol=1e-5, rtol=1e-6)
    # The completions' probabilities too.
    sums = [torch.zeros(batch.num_episodes).index_add(0, batch.episode_ids, x) for x in (log_probs, batch.log_probs)]
    torch.testing.assert_close(*sums, atol=1e-4, rtol=0)


USUAL = {name: partial(build, initializer_range=0.02) for name, build in SHARING.items()} | {"module": Recurrent}


@pytest.mark.parametrize("build", USUAL.values(), ids=USUAL)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_first_ratio_is_one_within_a_millionth(build, temperature):
    assert_first_ratios(policy_of(build(), temperature=temperature))


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_with_large_weights_nothing_but_rounding_moves_the_first_ratio(build):
    # Fifteen times the usual weights: in float32 the rounding of the logits alone is several millionths.
    assert_first_ratios(policy_of(build().double(), temperature=0.5))


def assert_first_ratios(policy):
    """Sampling scores a token at a time, training whole completions: the ratios of the first update."""
    batch = batch_of(policy, num_groups=4, max_new_tokens=12)
    ratios = (policy.evaluate(batch.inputs).log_probs.detach() - batch.log_probs).exp()
    torch.testing.assert_close(ratios, torch.ones_like(ratios), atol=1e-6, rtol=0)


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_scored_twice_the_ratio_is_exactly_one(build):
    policy = policy_of(build(), temperature=0.7)
    batch = batch_of(policy)
    with torch.no_grad():
        once = policy.evaluate(batch.inputs).log_probs
        again = policy.evaluate(batch.inputs).log_probs
    assert torch.equal((once - again).exp(), torch.ones(batch.num_steps))


def test_the_temperature_divides_the_logits_of_sampling_and_scoring():
    # softmax((2, 0, -20) / 0.5) at token 0: -ln(1 + exp(-4)).
    policy = CausalLMPolicy(Fixed(2.0, 0.0, -20.0), temperature=0.5, eos_token_id=2)
    inputs = TokenInputs.of([[0]], [[0]], [0])
    assert policy.evaluate(inputs).log_probs.item() == pytest.approx(-0.018150, abs=1e-6)
    sampler = CompletionSampler([[0]], lambda prompts, completions: [0.0] * len(completions), 64, max_new_tokens=4)
    batch = sampler.sample(policy, 1, seed())
    expected = torch.where(batch.inputs.tokens == 0, -0.018150, -4.018150)
    torch.testing.assert_close(batch.log_probs, expected, atol=1e-6, rtol=0)


def test_two_temperatures_are_two_policies():
    # exp(-0.126928 + 0.018150): sampled at 0.5 and scored at 1, an untouched model would have this ratio.
    inputs = TokenInputs.of([[0]], [[0]], [0])
    sampled, scored = (
        CausalLMPolicy(Fixed(2.0, 0.0, -20.0), temperature=temperature, eos_token_id=2).evaluate(inputs).log_probs
        for temperature in (0.5, 1.0)
    )
    assert (scored - sampled).exp().item() == pytest.approx(0.896929, abs=1e-6)


def test_a_module_that_keeps_its_state_writes_the_same():
    plain, keeping = (batch_of(policy_of(model()), num_groups=4) for model in (Recurrent, Keeping))
    assert torch.equal(plain.inputs.tokens, keeping.inputs.tokens)
    torch.testing.assert_close(plain.log_probs, keeping.log_probs)


def test_dropout_is_off_when_sampling_scoring_and_in_the_reference():
    model = gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    policy = policy_of(model)
    reference = ReferencePolicy().started_from(policy)
    model.train()
    batch = reference.annotate(batch_of(policy))
    assert model.training
    for log_probs in (policy.evaluate(batch.inputs).log_probs, batch.reference_log_probs):
        torch.testing.assert_close(log_probs, batch.log_probs, atol=1e-5, rtol=0)


def test_with_dropout_the_first_step_has_ratio_one_and_no_kl():
    model = gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, initializer_range=0.02)
    sampler = CompletionSampler(["abd", "e"], score_by_first_letter, 4, max_new_tokens=6)
    trainer = GRPOTrainer(policy_of(model), sampler, recipe=recipes.text_grpo(), groups_per_step=2)
    model.train()
    metrics = trainer.step()
    assert metrics["kl_reference"] == pytest.approx(0, abs=1e-10)
    for name in ("ratio_min", "ratio_mean", "ratio_max"):
        assert metrics[name] == pytest.approx(1, abs=1e-6)


def score_by_first_letter(prompts, completions, **columns):
    return [float(text[:1] < "k") for text in completions]


# Micro-batches: only what is kept at a time changes.


@pytest.mark.parametrize("tokens", [1, 12, 25, 40, 10_000])
def test_micro_batches_hold_every_completion_once_and_keep_to_the_budget(tokens):
    policy = policy_of(Recurrent(), tokens_per_micro_batch=tokens)
    inputs = batch_of(policy, num_groups=4).inputs
    parts = policy.micro_batches(inputs)
    assert sorted(torch.cat(parts).tolist()) == list(range(16))
    for part in parts:
        some = inputs.select_episodes(part)
        assert len(part) == 1 or some.prompts.numel() + some.completions.numel() <= tokens


def test_a_group_stays_together_where_it_fits():
    policy = policy_of(Recurrent(), tokens_per_micro_batch=60)
    inputs = batch_of(policy, num_groups=4).inputs
    shuffled = inputs.select_episodes(torch.randperm(16, generator=torch.Generator().manual_seed(0)))
    for part in policy.micro_batches(shuffled):
        for prompt in set(shuffled.prompt_index[part].tolist()):
            assert int((shuffled.prompt_index[part] == prompt).sum()) == 4


@pytest.mark.parametrize("tokens", [1, 20, 45])
def test_scores_without_gradient_do_not_depend_on_the_split(tokens):
    model = llama()
    whole, split = policy_of(model), policy_of(model, tokens_per_micro_batch=tokens)
    inputs = batch_of(whole).inputs.select_episodes(ints(5, 0, 9, 2, 7, 1))
    with torch.no_grad():
        expected, actual = whole.evaluate(inputs), split.evaluate(inputs)
    torch.testing.assert_close(actual.log_probs, expected.log_probs)
    torch.testing.assert_close(actual.entropy, expected.entropy)


@pytest.mark.parametrize("tokens", [1, 20, 45])
@pytest.mark.parametrize("recipe", ["grpo", "token mean", "constant", "sequence"])
def test_training_does_not_depend_on_the_split(tokens, recipe):
    changes = {
        "grpo": {},
        "token mean": {"reduction": "step_mean"},
        "constant": {"reduction": "constant"},
        "sequence": {"loss": [ClippedSurrogateLoss(ratio_level="episode_mean"), K3(0.1)]},
    }[recipe]
    metrics, gradients = zip(*(one_update(tokens=t, **changes) for t in (10_000, tokens)), strict=True)
    for name in ("loss", "kl_reference", "entropy", "ratio_mean", "ratio_max", "clip_fraction", "grad_norm"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], abs=1e-6, rel=1e-5), name
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def one_update(tokens, **changes):
    """The second of two updates, where ratios are no longer 1: its metrics and gradients."""
    policy = policy_of(llama(), tokens_per_micro_batch=tokens)
    sampler = CompletionSampler(["abd", "e"], score_by_first_letter, 4, max_new_tokens=6)
    recipe = recipes.text_grpo().replaced(
        groups_per_step=2,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        plan=MinibatchPlan(epochs=2, size=None, by="episode"),
        **changes,
    )
    trainer = GRPOTrainer(policy, sampler, recipe=recipe)
    metrics = trainer.step()
    return metrics, [parameter.grad for parameter in policy.parameters()]


# The end of a completion.


def test_a_completion_ends_at_its_first_end_of_sequence():
    model = Fixed(*[0.0] * 5)
    policy = CausalLMPolicy(model, Letters())
    completions = policy.generate(["ab"], 200, [torch.Generator().manual_seed(0)], max_new_tokens=5)
    assert {len(completion.tokens) for completion in completions} == {1, 2, 3, 4, 5}
    for completion in completions:
        assert EOS not in completion.tokens[:-1]
        assert completion.ended == (completion.tokens[-1] == EOS)
        assert completion.ended or len(completion.tokens) == 5
        assert "c" not in completion.text
        assert completion.log_probs.shape == (len(completion.tokens),)


def test_the_end_is_scored_and_padding_with_the_same_id_is_not():
    # [5, 6, 2, 2, 2] counts three tokens, [5, 6, 7, 8, 9] five, [2, 2, 2, 2, 2] one.
    inputs = TokenInputs.of([[2, 2]], [[5, 6, 2], [5, 6, 7, 8, 9], [2]], [0, 0, 0])
    inputs = dataclasses.replace(inputs, completions=inputs.completions.masked_fill(~inputs.completion_mask, EOS))
    assert inputs.completion_mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    policy = policy_of(llama())
    assert policy.evaluate(inputs).log_probs.shape == (9,)
    # Prompt tokens that equal the padding are read.
    other = dataclasses.replace(inputs, prompts=torch.tensor([[3, 2]]))
    assert not torch.allclose(policy.evaluate(inputs).log_probs, policy.evaluate(other).log_probs)


def test_padding_may_hold_any_id():
    policy = policy_of(llama())
    inputs = batch_of(policy).inputs
    changed = dataclasses.replace(
        inputs,
        prompts=inputs.prompts.masked_fill(~inputs.prompt_mask, 7),
        completions=inputs.completions.masked_fill(~inputs.completion_mask, 9),
    )
    torch.testing.assert_close(policy.evaluate(changed).log_probs, policy.evaluate(inputs).log_probs)


def test_stop_strings_end_a_completion_and_stay_in_it():
    policy = CausalLMPolicy(Fixed(0.0, 0.0, -30.0, 0.0), Letters())
    completions = policy.generate(["a"], 50, [torch.Generator().manual_seed(0)], max_new_tokens=30, stop=["dab"])
    assert all(completion.ended for completion in completions if len(completion.tokens) < 30)
    for completion in completions:
        assert completion.text.find("dab") in (-1, len(completion.text) - 3)
    assert sum(completion.text.endswith("dab") for completion in completions) > 10


# Randomness.


def test_the_global_generator_is_left_as_it_was():
    policy = policy_of(Recurrent())
    before = torch.get_rng_state()
    batch_of(policy)
    assert torch.equal(torch.get_rng_state(), before)


def test_greedy_completions_are_the_most_probable_tokens():
    policy = CausalLMPolicy(Fixed(0.0, 1.0, 0.5), Letters())
    completions = policy.generate(["a"], 2, [torch.Generator()], max_new_tokens=3, deterministic=True)
    assert [completion.text for completion in completions] == ["bbb", "bbb"]


@pytest.mark.parametrize(
    ("restriction", "allowed"), [({"top_k": 2}, {1, 3}), ({"top_p": 0.9}, {1, 3, 0}), ({"top_p": 0.5}, {1})]
)
def test_evaluation_may_restrict_sampling(restriction, allowed):
    # Probabilities 0.1, 0.6, 0.05, 0.25.
    model = Fixed(*np.log([0.1, 0.6, 0.05, 0.25]).tolist())
    policy = CausalLMPolicy(model, eos_token_id=9)
    completions = policy.generate([[0]], 200, [torch.Generator().manual_seed(0)], max_new_tokens=2, **restriction)
    assert {token for completion in completions for token in completion.tokens} == allowed
    # Log-probabilities stay those of the whole distribution.
    assert completions[0].log_probs[0].exp() == pytest.approx([0.1, 0.6, 0.05, 0.25][completions[0].tokens[0]])


# Precision, memory, adapters.


def test_autocast_computes_in_half_precision_and_scores_in_single():
    model = llama()
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    policy = policy_of(model, autocast=torch.bfloat16)
    inputs = batch_of(policy).inputs
    evaluation = policy.evaluate(inputs)
    assert set(seen) == {torch.bfloat16, torch.float32} or set(seen) == {torch.bfloat16}
    assert evaluation.log_probs.dtype == evaluation.entropy.dtype == torch.float32
    evaluation.log_probs.sum().backward()
    exact = policy_of(model).evaluate(inputs).log_probs
    torch.testing.assert_close(evaluation.log_probs, exact, atol=0.3, rtol=0)


def with_lora(model):
    peft = pytest.importorskip("peft")
    torch.manual_seed(7)
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by an old name
        return peft.get_peft_model(model, settings)


def test_the_reference_of_a_model_with_adapters_is_the_model_without_them():
    base = policy_of(llama())
    policy = policy_of(with_lora(llama()))
    assert policy._reader.layout == "shared"
    batch = batch_of(policy)
    reference = ReferencePolicy().started_from(policy)
    assert list(reference.policy.parameters()) == []
    annotated = reference.annotate(batch)
    torch.testing.assert_close(annotated.reference_log_probs, base.evaluate(batch.inputs).log_probs.detach())
    # On again afterwards, and still trained.
    torch.testing.assert_close(policy.evaluate(batch.inputs).log_probs.detach(), batch.log_probs, atol=1e-5, rtol=0)
    assert any(parameter.requires_grad for parameter in policy.parameters())


def test_adapters_are_trained_and_the_rest_is_not():
    policy = policy_of(with_lora(llama()))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    sampler = CompletionSampler(["abd", "e"], score_by_first_letter, 4, max_new_tokens=6)
    trainer = GRPOTrainer(policy, sampler, recipe=recipes.text_grpo(), groups_per_step=2)
    trainer.train(iterations=2)
    changed = {name for name, value in policy.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)


def test_a_model_with_adapters_is_no_reference_where_more_than_they_are_trained():
    model = with_lora(llama())
    model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"norm\.weight is trained and no part of an adapter"):
        ReferencePolicy().started_from(policy_of(model))
    policy = policy_of(model)
    frozen = copy.deepcopy(policy).requires_grad_(False)
    inputs = TokenInputs.of([[1]], [[2]], [0])
    reference = ReferencePolicy(policy=frozen).started_from(policy).policy
    before = reference.evaluate(inputs).log_probs.detach()
    with torch.no_grad():
        model.get_base_model().model.norm.weight.mul_(2)
    assert torch.equal(reference.evaluate(inputs).log_probs.detach(), before)


def test_training_in_half_precision_is_said():
    sampler = CompletionSampler(["abd"], score_by_first_letter, 4, max_new_tokens=6)
    with pytest.warns(UserWarning, match=r"torch.bfloat16, which rounds .* dtype=torch.float32"):
        GRPOTrainer(policy_of(llama().bfloat16()), sampler, recipe=recipes.text_grpo())


def test_a_reference_without_parameters_cannot_be_refreshed():
    with pytest.raises(ValueError, match="leave refresh_every out"):
        ReferencePolicy(refresh_every=2).started_from(policy_of(with_lora(llama())))


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_the_reference_of_any_other_model_is_a_copy(build):
    policy = policy_of(build())
    batch = batch_of(policy)
    reference = ReferencePolicy().started_from(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    annotated = reference.annotate(batch)
    torch.testing.assert_close(annotated.reference_log_probs, batch.log_probs, atol=1e-5, rtol=0)
    assert not any(parameter.requires_grad for parameter in reference.policy.parameters())


# What is refused.


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"temperature": 0.0}, ValueError, "temperature is 0.0"),
        ({"temperature": -1.0}, ValueError, "must be > 0"),
        ({"temperature": math.inf}, ValueError, "temperature is inf"),
        ({"eos_token_id": "</s>"}, TypeError, "eos_token_id is '</s>'"),
        ({"eos_token_id": []}, ValueError, "at least one id"),
        ({"eos_token_id": -1}, ValueError, "eos_token_id is -1"),
        ({"tokens_per_micro_batch": 0}, ValueError, "must be >= 1"),
        ({"gradient_checkpointing": True}, TypeError, "Recurrent has no layers"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_settings_out_of_range_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        policy_of(Recurrent(), **settings)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_model_must_be_a_module():
    with pytest.raises(TypeError, match="model is a function"):
        CausalLMPolicy(lambda ids, mask: ids, Letters())


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"group_size": 0}, ValueError, "group_size=0"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens=0"),
        ({"max_new_tokens": 2.5}, TypeError, "max_new_tokens is 2.5"),
        ({"stop": ""}, ValueError, "empty string"),
        ({"stop": ["a", ""]}, ValueError, "empty string"),
        ({"stop": [5]}, TypeError, r"stop is \[5\]"),
    ],
)
def test_completions_of_no_length_and_stops_of_no_text_are_refused(settings, error, message):
    arguments = {"group_size": 1, "max_new_tokens": 3, **settings}
    with pytest.raises(error, match=message):
        policy_of(Recurrent()).generate(["ab"], rngs=[torch.Generator()], **arguments)


def test_an_end_of_sequence_must_be_known():
    with pytest.raises(ValueError, match="eos_token_id="):
        CausalLMPolicy(Recurrent())


def test_a_module_that_returns_no_logits_is_named():
    class Wrong(nn.Module):
        def forward(self, ids, mask):
            return torch.zeros(3)

    policy = CausalLMPolicy(Wrong(), eos_token_id=2)
    with pytest.raises(ValueError, match=r"Wrong gave \(3,\) for token ids of shape \(1, 2\)"):
        policy.evaluate(TokenInputs.of([[1]], [[2]], [0]))


def test_text_needs_a_tokenizer():
    policy = CausalLMPolicy(Recurrent(), eos_token_id=2)
    with pytest.raises(TypeError, match="there is no tokenizer"):
        policy.encode("abc")
