"""Prompts read once, against the plain forward of the whole padded sequences."""

import warnings

import pytest
import torch
from language_models import SHARING, batch_of, gemma, gpt2, llama, mistral, policy_of

from grpolib.text.scoring import token_scores

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def plain_scores(model, inputs, temperature):
    """Each prompt and completion on its own, unpadded, by the model's own forward."""
    log_probs, entropies = [], []
    for row, prompt in enumerate(inputs.prompt_index.tolist()):
        before = inputs.prompts[prompt][inputs.prompt_mask[prompt]]
        after = inputs.completions[row][inputs.completion_mask[row]]
        logits = model(input_ids=torch.cat([before, after]).unsqueeze(0)).logits[0] / temperature
        scores = logits[len(before) - 1 : -1].log_softmax(-1)
        log_probs.append(scores.gather(1, after.unsqueeze(1)).squeeze(1))
        entropies.append(-(scores.exp() * scores).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


def gradients(model, log_probs, entropy):
    upstream = torch.linspace(-1, 1, len(log_probs))
    return torch.autograd.grad(((log_probs + 0.1 * entropy) * upstream).sum(), list(model.parameters()))


def assert_same_as_plain(model, **settings):
    policy = policy_of(model, temperature=0.8, **settings)
    inputs = batch_of(policy).inputs
    evaluation = policy.evaluate(inputs)
    expected = plain_scores(model, inputs, 0.8)
    torch.testing.assert_close((evaluation.log_probs, evaluation.entropy), expected, **TOLERANCE)
    actual = gradients(model, evaluation.log_probs, evaluation.entropy)
    for one, other in zip(actual, gradients(model, *expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max().clamp(min=1)))
    return policy


@pytest.mark.parametrize("build", SHARING.values(), ids=SHARING)
def test_a_shared_prompt_gives_the_plain_values_and_gradients(build):
    policy = assert_same_as_plain(build())
    assert policy._reader.layout == "shared"


@pytest.mark.parametrize("build", SHARING.values(), ids=SHARING)
def test_checkpointed_layers_give_the_plain_values_and_gradients(build):
    policy = assert_same_as_plain(build(), gradient_checkpointing=True)
    assert not any(part.training for part in policy.modules())


def test_checkpointed_layers_are_computed_again():
    calls = []
    model = llama()
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    policy = policy_of(model, gradient_checkpointing=True)
    inputs = batch_of(policy).inputs
    calls.clear()
    policy.evaluate(inputs).log_probs.sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("build", "layout", "reason"),
    [(mistral, "joined", "cache cannot be shared"), (gemma, "logits", "not its output embedding")],
)
def test_what_cannot_be_shared_is_read_the_plain_way_and_said_once(build, layout, reason):
    with pytest.warns(UserWarning, match=reason) as found:
        policy = assert_same_as_plain(build())
    assert len([warning for warning in found if reason in str(warning.message)]) == 1
    assert policy._reader.layout == layout
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.evaluate(batch_of(policy).inputs)


def test_a_prompt_is_encoded_once_for_its_group():
    model = llama()
    policy = policy_of(model)
    inputs = batch_of(policy, num_groups=2, group_size=4, max_new_tokens=5).inputs
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda _, given, __: seen.append(given[0].numel()))
    policy.evaluate(inputs)
    # The prompts, and the completions without their last token.
    assert seen == [inputs.prompts.numel(), inputs.completions[:, :-1].numel()]


def test_the_head_sees_the_predicting_tokens_alone():
    model = llama()
    policy = policy_of(model)
    batch = batch_of(policy)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _, given, __: seen.append(given[0].shape[0]))
    policy.evaluate(batch.inputs)
    assert sum(seen) == batch.num_steps


@pytest.mark.parametrize("build", SHARING.values(), ids=SHARING)
def test_a_completion_has_the_same_log_probabilities_alone_and_in_any_batch(build):
    policy = policy_of(build())
    batch = batch_of(policy, num_groups=4)
    together = policy.evaluate(batch.inputs).log_probs
    for episode in range(batch.num_episodes):
        alone = policy.evaluate(batch.inputs.select_episodes(torch.tensor([episode]))).log_probs
        rows = batch.episode_ids == episode
        torch.testing.assert_close(alone, together[rows], **TOLERANCE)


def test_the_probe_leaves_the_model_as_it_is():
    model = gpt2()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    policy = policy_of(model)
    model.train()
    batch_of(policy)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_scores_are_those_of_the_logits():
    model = llama()
    policy = policy_of(model)
    inputs = batch_of(policy).inputs
    log_probs, entropy = token_scores(policy._reader._joined_logits(inputs), inputs.tokens, 1.0)
    evaluation = policy.evaluate(inputs)
    torch.testing.assert_close((evaluation.log_probs, evaluation.entropy), (log_probs, entropy), **TOLERANCE)


@pytest.mark.parametrize("unknown", [-1, 10_000_000])
def test_a_token_that_the_model_does_not_know_is_named(unknown):
    policy = policy_of(llama())
    with pytest.raises(
        ValueError, match=rf"token id {unknown}, and the model has \d+ tokens: .*resize_token_embeddings"
    ):
        policy.generate([[1, unknown]], 1, [torch.Generator()], max_new_tokens=1)
    known = policy.model.get_input_embeddings().num_embeddings
    assert policy.encode([0, known - 1]) == [0, known - 1]
