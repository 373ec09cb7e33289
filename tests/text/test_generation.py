import pytest
import torch
from language_models import SHARING, Fixed, Letters, Recurrent, policy_of, seed

from grpolib import CausalLMPolicy, CompletionSampler
from grpolib.text.generation import Restricted, sampled

BUILD = {**SHARING, "module": Recurrent}


def unscored(prompts, completions, **columns):
    return [0.0] * len(completions)


def test_draws_go_through_the_inverse_of_the_distribution():
    # Cumulative: 0.2, 0.2, 0.7, 1.0.
    logits = torch.tensor([0.2, 0.0, 0.5, 0.3]).log().expand(6, -1)
    draws = torch.tensor([0.0, 0.19, 0.2, 0.69, 0.71, 1 - 2**-53], dtype=torch.float64)
    assert sampled(logits, draws).tolist() == [0, 0, 2, 2, 3, 3]


def test_tokens_come_as_often_as_they_are_probable():
    probs = torch.tensor([0.1, 0.6, 0.05, 0.25])
    draws = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = sampled(probs.log().expand(20_000, -1), draws)
    torch.testing.assert_close(torch.bincount(tokens) / 20_000, probs, atol=0.01, rtol=0)


@pytest.mark.parametrize("settings", [{"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_an_impossible_restriction_is_refused(settings):
    with pytest.raises(ValueError, match="top_k >= 1 and top_p in"):
        Restricted(**settings)


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_completions_do_not_depend_on_who_is_written_at_the_same_time(build, size):
    policy = policy_of(build())
    prompts = ["dab", "e", "fghhh", "bbb", "abdab"]
    together, apart = (
        CompletionSampler(prompts, unscored, 4, max_new_tokens=9, groups_at_a_time=at_a_time).sample(policy, 5, seed())
        for at_a_time in (None, size)
    )
    assert torch.equal(together.inputs.completions, apart.inputs.completions)
    torch.testing.assert_close(together.log_probs, apart.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_completions_that_have_ended_leave_the_batch(build):
    model = build()
    policy = policy_of(model, eos_token_id=list(range(0, 41, 3)))
    rows = []

    def count(module, given, output):
        rows.append(output.shape[0] if output.ndim == 2 else output[:, -1].shape[0])

    (model.head if isinstance(model, Recurrent) else model.get_output_embeddings()).register_forward_hook(count)
    batch = CompletionSampler(["dab", "e"], unscored, 8, max_new_tokens=10).sample(policy, 2, seed())
    # The logits of a later token are made only for completions that have one.
    later = [int((batch.lengths > step).sum()) for step in range(1, int(batch.lengths.max()))]
    assert rows[-len(later) :] == later
    assert later[-1] < later[0] < 16


def test_a_prompt_is_read_once_for_its_group():
    model = SHARING["llama"]()
    policy = policy_of(model)
    policy.generate(["ab"], 1, [torch.Generator()], max_new_tokens=1)
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape)))
    policy.generate(["abd", "d"], 4, [torch.Generator().manual_seed(i) for i in range(2)], max_new_tokens=3)
    assert seen[0] == (2, 3)
    assert all(shape[1] == 1 for shape in seen[1:])


def test_a_completion_of_one_token_needs_no_second_step():
    policy = CausalLMPolicy(Fixed(0.0, 0.0), Letters())
    (completion,) = policy.generate(["a"], 1, [torch.Generator()], max_new_tokens=1)
    assert len(completion.tokens) == 1
    assert not completion.ended
