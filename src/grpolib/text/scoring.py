"""Log-probabilities and entropies of tokens, without logits of the whole batch."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head: TypeAlias = Callable[[Tensor], Tensor]
"""From hidden states [s, D] to logits [s, V]."""

CHUNK_LOGITS = 2**23
"""Logits that exist at a time: 32 MB in float32."""


def token_scores(
    logits: Float[Tensor, "s V"], tokens: Int[Tensor, " s"], temperature: float
) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
    """Log-probability of each token, and entropy, of softmax(logits / temperature); nats, float32 or wider.

    Logits of -inf have probability 0 and no part in the entropy.

    >>> log_probs, entropy = token_scores(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), 0.5)
    >>> round(float(log_probs), 6)
    -0.01815
    """
    logits = scaled(logits, temperature)
    normalizers = logits.logsumexp(-1)
    log_probs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - normalizers
    probs = (logits - normalizers.unsqueeze(-1)).exp()
    # 0 x -inf is NaN; where the probability is 0, any finite number will do.
    return log_probs, normalizers - (probs * logits.clamp(min=-1e9)).sum(-1)


def scaled(logits: Float[Tensor, "s V"], temperature: float) -> Float[Tensor, "s V"]:
    """The logits of the policy: divided by the temperature, in float32 or wider."""
    return (logits if logits.dtype == torch.float64 else logits.float()) / temperature


def chunked_scores(
    hidden: Float[Tensor, "S D"], tokens: Int[Tensor, " S"], head: Head, temperature: float, rows: int
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """`token_scores` of head(hidden), `rows` at a time; with gradient, logits are computed again going back.

    Args:
        hidden: The state that each token is predicted from.
        tokens: Ids.
        head: From states to logits.
        temperature: > 0.
        rows: Tokens whose logits exist at a time, >= 1.
    """

    def scores(part: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return token_scores(head(part), ids, temperature)

    run = _checkpointed(scores) if torch.is_grad_enabled() and len(tokens) > 0 else scores
    chunks = [run(part, ids) for part, ids in zip(hidden.split(rows), tokens.split(rows), strict=True)]
    return torch.cat([log_probs for log_probs, _ in chunks]), torch.cat([entropy for _, entropy in chunks])


def _checkpointed(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def run(part: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        scores: tuple[Tensor, Tensor] = checkpoint(function, part, ids, use_reentrant=False, preserve_rng_state=False)
        return scores

    return run
