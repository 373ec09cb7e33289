"""What a policy that writes completions is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from grpolib.policies import Policy
from grpolib.text.tokens import Prompt


@dataclass(frozen=True)
class Completion:
    """What a policy wrote after a prompt.

    Args:
        tokens: Ids, the end-of-sequence token included where there is one; >= 1.
        log_probs: Of each token under the policy that sampled it, nats.
        ended: The policy ended it; False where it was cut by its length.
        text: Without special tokens.
    """

    tokens: list[int]
    log_probs: Float[Tensor, " t"]
    ended: bool
    text: str


@runtime_checkable
class GeneratingPolicy(Policy, Protocol):
    """A policy that also writes completions."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        rngs: Sequence[torch.Generator],
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
    ) -> list[Completion]:
        """Write `group_size` completions of each prompt, prompt by prompt.

        Args:
            prompts: Each is read once, whatever the group's size.
            group_size: Completions of each prompt, >= 1.
            rngs: One per prompt, its only source of randomness (CPU generators).
            max_new_tokens: Tokens after which a completion is cut.
            stop: Strings that end a completion; they stay in it.
        """
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The text of a completion's tokens, without special ones."""
        ...
