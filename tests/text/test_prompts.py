import json

import numpy as np
import pytest
import torch
from language_models import Letters, Recurrent, policy_of, seed

from grpolib import CompletionSampler
from grpolib.text.prompts import PromptRow, Prompts, prompt_numbers
from grpolib.text.tokens import prompt_ids

CHAT = [{"role": "user", "content": "ab"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("ab", PromptRow("ab", {})),
        (CHAT, PromptRow(CHAT, {})),
        ([3, 4], PromptRow([3, 4], {})),
        ({"prompt": "ab", "answer": 3}, PromptRow("ab", {"answer": 3})),
        ({"prompt": CHAT}, PromptRow(CHAT, {})),
    ],
)
def test_a_prompt_is_text_messages_ids_or_a_row(row, expected):
    assert Prompts([row])[0] == expected


def test_prompts_come_from_a_json_lines_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "ab", "answer": 3}) + "\n\n" + json.dumps("d") + "\n")
    for source in (path, str(path)):
        assert list(Prompts(source)) == [PromptRow("ab", {"answer": 3}), PromptRow("d", {})]


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"ab"\n{"prompt": \n')
    with pytest.raises(ValueError, match=r"prompts.jsonl, line 2 is no JSON"):
        Prompts(path)


class Table:
    """As `datasets.Dataset` gives its rows."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"prompt": "ab" * (index + 1), "answer": index}


def test_a_table_is_read_row_by_row():
    assert list(Prompts(Table())) == [PromptRow("ab", {"answer": 0}), PromptRow("abab", {"answer": 1})]


def test_no_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Prompts([])


@pytest.mark.parametrize("row", [{"question": "ab"}, 3, []])
def test_what_is_no_prompt_is_named(row):
    with pytest.raises(TypeError, match="prompt 0 is"):
        Prompts([row])[0]


@pytest.mark.parametrize("source", [{"prompt": ["ab"]}, {"ab", "d"}, (text for text in ["ab"])])
@pytest.mark.usefixtures("without_shape_hook")
def test_what_is_no_list_of_prompts_is_refused_at_once(source):
    with pytest.raises(TypeError, match=f"prompts are a {type(source).__name__}: give a list"):
        Prompts(source)


# The order.


def test_a_step_draws_without_replacement():
    numbers = prompt_numbers(seed(), range(10), 10)
    assert sorted(numbers) == list(range(10))
    assert numbers != list(range(10))


def test_beyond_the_last_prompt_a_new_order_begins():
    numbers = prompt_numbers(seed(), range(15), 5)
    for start in (0, 5, 10):
        assert sorted(numbers[start : start + 5]) == list(range(5))
    assert numbers[:5] != numbers[5:10] or numbers[5:10] != numbers[10:]


def test_the_order_depends_on_seed_and_step_alone():
    assert prompt_numbers(seed(0, 3), range(8), 50) == prompt_numbers(seed(0, 3), range(8), 50)
    assert prompt_numbers(seed(0, 3), range(4, 8), 50) == prompt_numbers(seed(0, 3), range(8), 50)[4:]
    assert prompt_numbers(seed(0, 3), range(8), 50) != prompt_numbers(seed(0, 4), range(8), 50)
    assert prompt_numbers(seed(0, 3), range(8), 50) != prompt_numbers(seed(1, 3), range(8), 50)


def test_a_step_can_be_sampled_again_without_those_before_it():
    sampler = CompletionSampler(["ab", "d", "e"], lambda prompts, completions: [0.0] * len(completions), 2)
    policy = policy_of(Recurrent())
    first = sampler.sample(policy, 2, seed(0, 5))
    sampler.sample(policy, 2, seed(0, 6))
    again = sampler.sample(policy, 2, seed(0, 5))
    assert torch.equal(first.inputs.completions, again.inputs.completions)
    rest = sampler.sample(policy, 1, seed(0, 5), first_group=1)
    assert torch.equal(rest.inputs.tokens, first.inputs.select_episodes(torch.tensor([2, 3])).tokens)


# To token ids.


class Chatty(Letters):
    """With a chat template, as Hugging Face's tokenizers have."""

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        assert add_generation_prompt
        assert not tokenize
        return "".join(message["content"] for message in messages) + "z"

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": self.encode(text)}


def test_a_conversation_goes_through_the_chat_template():
    assert prompt_ids(Chatty(), [*CHAT, {"role": "assistant", "content": "d"}]) == [0, 1, 3, 25]


def test_a_conversation_without_a_template_is_refused():
    with pytest.raises(TypeError, match="Letters has no chat template"):
        prompt_ids(Letters(), CHAT)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="has no token"):
        prompt_ids(Letters(), "")


@pytest.mark.parametrize("prompt", [None, 5, {"role": "user", "content": "ab"}])
@pytest.mark.usefixtures("without_shape_hook")
def test_a_prompt_of_no_known_kind_is_named(prompt):
    with pytest.raises(TypeError, match=f"the prompt .* is a {type(prompt).__name__}"):
        prompt_ids(Chatty(), prompt)


@pytest.mark.usefixtures("without_shape_hook")
def test_token_ids_may_be_those_of_numpy():
    assert prompt_ids(None, [np.int64(3), np.int32(4)]) == [3, 4]


@pytest.mark.parametrize("message", [{"content": "ab"}, {"role": "user"}, {"prompt": "ab"}])
def test_a_message_without_role_or_content_is_refused(message):
    with pytest.raises(ValueError, match="has no 'role' or no 'content'"):
        prompt_ids(Chatty(), [*CHAT, message])


def test_a_call_of_a_tool_needs_no_content():
    class Roles(Chatty):
        def apply_chat_template(self, messages, add_generation_prompt, tokenize):
            return "".join(message["role"][0] for message in messages)

    assert prompt_ids(Roles(), [*CHAT, {"role": "assistant", "tool_calls": []}]) == [20, 0]
