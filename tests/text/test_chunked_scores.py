import math

import pytest
import torch
from helpers import ints
from torch import nn

from grpolib.text.scoring import chunked_scores, token_scores


@pytest.mark.parametrize(
    ("temperature", "expected", "entropy"),
    # Of (2, 0) / T with x = 2 / T: log softmax at 0 is -ln(1 + exp(-x)), entropy ln(1 + exp(-x)) + x / (1 + exp(x)).
    [(0.5, -0.018150, 0.090095), (1.0, -0.126928, 0.365334), (2.0, -0.313262, 0.582203)],
)
def test_the_temperature_divides_the_logits(temperature, expected, entropy):
    log_probs, entropies = token_scores(torch.tensor([[2.0, 0.0]]), ints(0), temperature)
    assert float(log_probs) == pytest.approx(expected, abs=1e-6)
    assert float(entropies) == pytest.approx(entropy, abs=1e-6)


def test_a_forbidden_token_has_no_part_in_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    log_probs, entropy = token_scores(logits, ints(0), 1.0)
    torch.testing.assert_close(log_probs, torch.tensor([-math.log(2)]))
    torch.testing.assert_close(entropy, torch.tensor([math.log(2)]))
    (gradient,) = torch.autograd.grad(log_probs + entropy, logits)
    torch.testing.assert_close(gradient, torch.tensor([[0.5, -0.5, 0.0]]))


def test_half_precision_logits_are_scored_in_float32():
    log_probs, entropy = token_scores(torch.tensor([[2.0, 0.0]], dtype=torch.bfloat16), ints(0), 1.0)
    assert log_probs.dtype == entropy.dtype == torch.float32


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_chunks_change_neither_values_nor_gradients(rows, with_entropy):
    rng = torch.Generator().manual_seed(0)
    head = nn.Linear(4, 9)
    hidden = torch.randn(7, 4, generator=rng, requires_grad=True)
    tokens = torch.randint(9, (7,), generator=rng)
    upstream = torch.randn(7, generator=rng)

    def gradients(log_probs, entropy):
        total = (log_probs * upstream).sum() + (entropy.sum() if with_entropy else 0.0)
        return torch.autograd.grad(total, [hidden, head.weight, head.bias])

    log_softmax = head(hidden).div(0.7).log_softmax(-1)
    expected = log_softmax[torch.arange(7), tokens], -(log_softmax.exp() * log_softmax).sum(-1)
    actual = chunked_scores(hidden, tokens, head, 0.7, rows)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients(*actual), gradients(*expected))


def test_logits_of_one_chunk_exist_at_a_time():
    seen = []

    def head(states):
        seen.append(len(states))
        return states

    hidden = torch.randn(10, 5, requires_grad=True)
    log_probs, _ = chunked_scores(hidden, torch.zeros(10, dtype=torch.long), head, 1.0, 4)
    log_probs.sum().backward()
    assert seen[:3] == [4, 4, 2]
    assert max(seen) == 4
    assert len(seen) == 6  # once forward, once going back
