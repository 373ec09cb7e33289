"""Log-probabilities and entropies of tokens, without logits of the whole batch."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
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
    # torch leaves `apply` untyped.
    log_probs, entropy = _TokenScores.apply(scaled(logits, temperature), tokens)  # type: ignore[no-untyped-call]
    return log_probs, entropy


def token_log_probs(logits: Float[Tensor, "s V"], tokens: Int[Tensor, " s"], temperature: float) -> Float[Tensor, " s"]:
    """The log-probabilities of `token_scores` alone.

    >>> float(token_log_probs(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), 1.0).exp())
    0.5
    """
    return _log_probs(scaled(logits, temperature), tokens)[0]


def _log_probs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and normalizers."""
    normalizers = logits.logsumexp(-1)
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - normalizers, normalizers


class _TokenScores(torch.autograd.Function):
    """Scores with their gradient written out.

    For logit j, token a and entropy H: d log p(a) = 1[j = a] - p(j), and d H = -p(j) (log p(j) + H).

    Recorded step by step, the same would keep and pass over several tensors of the logits' size.
    """

    @staticmethod
    # What torch hands over has no type.
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, normalizers = _log_probs(logits, tokens)
        probs = (logits - normalizers.unsqueeze(-1)).exp_()
        # 0 x -inf is NaN; where the probability is 0, any finite number will do.
        entropy = normalizers - probs.mul_(logits.clamp(min=-1e9)).sum(-1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, tokens, normalizers, entropy)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    # torch calls it with one gradient per output, and types it with any number.
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None
    ) -> tuple[Tensor, None]:
        logits, tokens, normalizers, entropy = ctx.saved_tensors
        surprise = logits - normalizers.unsqueeze(-1)
        gradient = surprise.exp()
        if of_entropy is None:
            gradient.mul_(-_column(of_log_probs, entropy))
        else:
            factors = surprise.clamp_(min=-1e9).add_(entropy.unsqueeze(-1)).mul_(_column(of_entropy, entropy))
            gradient.mul_(factors.add_(_column(of_log_probs, entropy)).neg_())
        return gradient.scatter_add_(-1, tokens.unsqueeze(-1), _column(of_log_probs, entropy)), None


def _column(gradient: Tensor | None, like: Tensor) -> Tensor:
    return (torch.zeros_like(like) if gradient is None else gradient).unsqueeze(-1)


def scaled(logits: Float[Tensor, "s V"], temperature: float) -> Float[Tensor, "s V"]:
    """The logits of the policy: divided by the temperature, in float32 or wider."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1 else logits / temperature


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
