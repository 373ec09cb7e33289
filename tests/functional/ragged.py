"""Hypothesis strategies for ragged data, and small helpers for comparing with the oracles."""

import torch
from hypothesis import strategies as st

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

discounts = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]) | st.floats(0.0, 1.0)


def numbers(size, bound=100.0):
    """Lists of `size` floats that float32 holds exactly, free of subnormals."""
    plain = st.floats(-bound, bound, width=32, allow_subnormal=False)
    return st.lists(plain, min_size=size, max_size=size)


def lengths(max_episodes=6, max_length=12):
    return st.lists(st.integers(1, max_length), min_size=1, max_size=max_episodes)


@st.composite
def group_ids(draw, max_groups=4, max_size=5):
    """Ids of groups of at least two members, uneven, interleaved and with gaps."""
    labels = draw(st.lists(st.integers(0, 50), min_size=1, max_size=max_groups, unique=True))
    ids = [label for label in labels for _ in range(draw(st.integers(2, max_size)))]
    return draw(st.permutations(ids))


@st.composite
def scored_groups(draw):
    ids = draw(group_ids())
    return draw(numbers(len(ids))), ids


@st.composite
def grouped_episodes(draw, max_length=7):
    """(rewards, lengths, group_ids)."""
    ids = draw(group_ids(max_groups=3, max_size=4))
    sizes = draw(st.lists(st.integers(1, max_length), min_size=len(ids), max_size=len(ids)))
    return draw(numbers(sum(sizes))), sizes, ids


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def ints(values):
    return torch.tensor(values, dtype=torch.long)


def bools(values):
    return torch.tensor(values, dtype=torch.bool)


def assert_matches(actual, expected, *, rtol=1e-9, atol=1e-9):
    """Compare a float64 result with an oracle's floats."""
    torch.testing.assert_close(actual, f64(expected), rtol=rtol, atol=atol)
