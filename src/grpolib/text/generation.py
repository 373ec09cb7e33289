"""Writing completions token by token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpolib.text.models import Decoding
from grpolib.text.scoring import scaled, token_log_probs

Choose = Callable[[Tensor, Tensor], Tensor]
"""From logits [n, V] at the sampling temperature and draws [n] in [0, 1) to tokens [n]."""


@dataclass
class Draft:
    """One completion while it is written."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    ended: bool = False


@torch.no_grad()
def write(
    decoding: Decoding,
    draws: Float[Tensor, "n T"],
    *,
    choose: Choose,
    temperature: float,
    ends: Callable[[Sequence[int]], bool],
) -> list[Draft]:
    """Write one completion per row of `draws`, of T tokens at most; rows that have ended leave the batch.

    Args:
        decoding: At its start.
        draws: Uniform in [0, 1): what token t of row i depends on, whoever else is in the batch.
        choose: The token for a draw.
        temperature: > 0; divides the logits, also of the log-probabilities.
        ends: Whether a completion's tokens so far end it.
    """
    drafts = [Draft() for _ in draws]
    alive = torch.arange(len(draws))
    for step in range(draws.shape[1]):
        logits = decoding.logits
        tokens = choose(scaled(logits, temperature), draws[alive, step].to(logits.device))
        log_probs = token_log_probs(logits, tokens, temperature)
        going = _append([drafts[row] for row in alive.tolist()], tokens.tolist(), log_probs.tolist(), ends)
        if not going or step + 1 == draws.shape[1]:
            break
        rows = torch.tensor(going)
        alive = alive[rows]
        rows = rows.to(tokens.device)
        decoding.advance(tokens[rows], rows)
    return drafts


def _append(
    drafts: list[Draft], tokens: list[int], log_probs: list[float], ends: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Append to each draft, and return the places of those that go on."""
    for draft, token, log_prob in zip(drafts, tokens, log_probs, strict=True):
        draft.tokens.append(token)
        draft.log_probs.append(log_prob)
        draft.ended = ends(draft.tokens)
    return [place for place, draft in enumerate(drafts) if not draft.ended]


def sampled(logits: Float[Tensor, "n V"], draws: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Tokens by the inverse of the cumulative distribution; one of probability 0 is never drawn."""
    # float64: in float32 the sum over a large vocabulary is off by more than its rarest tokens.
    cdf = logits.double().softmax(-1).cumsum(-1)
    places = torch.searchsorted(cdf, (draws.double() * cdf[:, -1]).unsqueeze(-1), right=True).squeeze(-1)
    return places.clamp(max=logits.shape[-1] - 1)


def greedy(logits: Float[Tensor, "n V"], draws: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The most probable tokens."""
    return logits.argmax(-1)


@dataclass(frozen=True)
class Restricted:
    """Samples among the most probable tokens: for evaluation, since training must know the whole distribution.

    Args:
        top_k: How many tokens are left, >= 1.
        top_p: Probability that the tokens left have together, in (0, 1].
    """

    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if (self.top_k is not None and self.top_k < 1) or (self.top_p is not None and not 0 < self.top_p <= 1):
            raise ValueError(f"top_k is {self.top_k} and top_p {self.top_p}: give top_k >= 1 and top_p in (0, 1]")

    def __call__(self, logits: Float[Tensor, "n V"], draws: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Tokens by the inverse of the restricted cumulative distribution."""
        ordered, tokens = torch.sort(logits, dim=-1, descending=True, stable=True)
        probs = ordered.double().softmax(-1)
        before = probs.cumsum(-1) - probs
        dropped = before >= (1.0 if self.top_p is None else self.top_p)
        if self.top_k is not None:
            dropped[:, self.top_k :] = True
        places = sampled(ordered.masked_fill(dropped, -torch.inf), draws)
        return torch.gather(tokens, -1, places.unsqueeze(-1)).squeeze(-1)
