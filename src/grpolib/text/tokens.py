"""Text and token ids: what is asked of a tokenizer, and how prompts and completions go through it."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol, TypeAlias, runtime_checkable

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: {"role": ..., "content": ...}."""
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""Text, the messages of a conversation, or token ids."""


@runtime_checkable
class Tokenizer(Protocol):
    """What is asked of a tokenizer; those of Hugging Face have it, and a class of three lines may.

    Conversations also need Hugging Face's `apply_chat_template`.
    """

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a completion."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids."""
        ...


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt; a conversation goes through the chat template, ready for the assistant's turn.

    Raises:
        TypeError: No prompt, text without a tokenizer, or a conversation without a chat template.
        ValueError: No token at all: the first token of a completion is predicted from the prompt's last. Or a message
            without role or content.
    """
    if isinstance(prompt, Mapping) or not isinstance(prompt, Sequence):
        raise TypeError(
            f"the prompt {prompt!r} is a {type(prompt).__name__}: give text, messages or a list of token ids"
        )
    if not isinstance(prompt, str) and all(isinstance(part, Integral) for part in prompt):
        ids = [int(part) for part in prompt if isinstance(part, Integral)]
    elif tokenizer is None:
        raise TypeError(f"the prompt {prompt!r} is text and there is no tokenizer: CausalLMPolicy(model, tokenizer)")
    elif isinstance(prompt, str):
        ids = list(tokenizer.encode(prompt))
    else:
        ids = _conversation_ids(tokenizer, prompt)
    if not ids:
        raise ValueError(f"the prompt {prompt!r} has no token: begin it with one, for instance the tokenizer's BOS")
    return ids


def completion_text(tokenizer: Any, ids: list[int]) -> str:
    """The text of a completion, without the tokenizer's special tokens; the ids as text where there is none."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    special = set(getattr(tokenizer, "all_special_ids", ())) | {tokenizer.eos_token_id}
    return str(tokenizer.decode([token for token in ids if token not in special]))


def eos_ids(tokenizer: Any, model: Any, given: int | Sequence[int] | None) -> frozenset[int]:
    """Tokens that end a completion: as given, else the tokenizer's and those of the model's generation settings.

    Raises:
        TypeError: Something else than ids is given.
        ValueError: None are known, or none or a negative one is given.
    """
    if given is not None:
        return _checked_ids(given)
    settings = getattr(model, "generation_config", None)
    found = _as_ids(getattr(tokenizer, "eos_token_id", None)) | _as_ids(getattr(settings, "eos_token_id", None))
    if not found:
        raise ValueError("no token is known to end a completion: give CausalLMPolicy(..., eos_token_id=...)")
    return found


def stop_strings(stop: str | Sequence[str]) -> list[str]:
    """The strings that end a completion: one or several.

    Raises:
        TypeError: Something else than text.
        ValueError: An empty one, which would end every completion at its first token.
    """
    words: list[Any] = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(word, str) for word in words):
        raise TypeError(f"stop is {stop!r}: give a string or a list of strings; token ids are eos_token_id's")
    if "" in words:
        raise ValueError(f"stop is {stop!r}: an empty string ends every completion at once; leave it out")
    return words


def _as_ids(value: int | Sequence[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _checked_ids(given: Any) -> frozenset[int]:
    ids: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not all(isinstance(token, Integral) for token in ids):
        raise TypeError(f"eos_token_id is {given!r}: give ids; tokenizer.convert_tokens_to_ids makes them from text")
    if not ids or min(ids) < 0:
        raise ValueError(f"eos_token_id is {given!r}: give at least one id, >= 0; None takes the tokenizer's")
    return frozenset(int(token) for token in ids)


def _conversation_ids(tokenizer: Any, messages: Any) -> list[int]:
    if not hasattr(tokenizer, "apply_chat_template"):
        raise TypeError(f"{type(tokenizer).__name__} has no chat template for {messages!r}: give the prompt as text")
    # A template writes nothing for what is not there.
    for message in messages:
        if isinstance(message, Mapping) and not ("role" in message and message.keys() & {"content", "tool_calls"}):
            raise ValueError(f"the message {dict(message)!r} has no 'role' or no 'content': a conversation's have both")
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    # The template writes the special tokens itself.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
