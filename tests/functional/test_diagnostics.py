import math

import pytest
import reference as oracle
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ragged import FLOAT_DTYPES, assert_matches, bools, f64, grouped_episodes, ints, numbers, scored_groups

from grpolib.functional import (
    clip_fractions,
    clipped_surrogate,
    effective_sample_size,
    explained_variance,
    group_std,
    living_peers,
)

positive = st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=12)


@st.composite
def pairs(draw):
    size = draw(st.integers(1, 12))
    return draw(st.lists(st.floats(0, 3), min_size=size, max_size=size)), draw(numbers(size))


# Clip fractions.


def test_only_steps_that_the_bound_stops_count():
    # Bounds 0.8 and 1.28: ρ 1.5 & A > 0 stops above, ρ 0.5 & A < 0 below; the other two corners and A = 0 do not.
    ratios = f64([1.5, 0.5, 1.5, 0.5, 1.25, 1.5, 0.5, 1.3])
    advantages = f64([1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 0.0, 1.0])
    low, high = clip_fractions(ratios, advantages, clip_epsilon=0.2, clip_epsilon_high=0.28)
    assert (low.item(), high.item()) == (1 / 8, 2 / 8)
    low, high = clip_fractions(ratios, advantages, clip_epsilon=0.2)
    assert (low.item(), high.item()) == (1 / 8, 3 / 8)


@given(pairs(), st.floats(0, 0.9), st.none() | st.floats(0, 2))
def test_clip_fractions_agree_with_a_loop(pair, low, high):
    found = clip_fractions(*map(f64, pair), clip_epsilon=low, clip_epsilon_high=high)
    expected = oracle.clip_fractions(*pair, low, low if high is None else high)
    assert [x.item() for x in found] == pytest.approx(expected)


@given(pairs(), st.floats(0, 0.9), st.floats(0, 2))
def test_the_clipped_steps_are_those_without_gradient(pair, low, high):
    ratios, advantages = f64(pair[0]).requires_grad_(), f64(pair[1])
    bounds = {"clip_epsilon": low, "clip_epsilon_high": high}
    clipped_surrogate(ratios, advantages, **bounds).sum().backward()
    stopped = ((ratios.grad == 0) & (advantages != 0)).sum().item()
    assert sum(clip_fractions(ratios, advantages, **bounds)).item() == pytest.approx(stopped / len(ratios))


def test_masked_steps_do_not_count():
    ratios, advantages = torch.tensor([1.5, math.nan, 0.5, 1.0]), torch.tensor([1.0, 1.0, math.nan, -1.0])
    mask = bools([True, False, False, True])
    low, high = clip_fractions(ratios, advantages, clip_epsilon=0.2, mask=mask)
    assert (low.item(), high.item()) == (0.0, 0.5)


# Effective sample size.


def test_effective_sample_size_numbers():
    # (1 + 3)² / (2 · (1 + 9)) = 0.8; one of four counts: 1/4; all equal: 1.
    assert effective_sample_size(f64([1.0, 3.0])).item() == 0.8
    assert effective_sample_size(f64([0.0, 0.0, 7.0, 0.0])).item() == 0.25
    assert effective_sample_size(torch.full((7,), 0.3)).item() == 1.0


@given(positive, st.floats(0.01, 100.0))
def test_effective_sample_size_laws(ratios, factor):
    share = effective_sample_size(f64(ratios))
    assert_matches(share, oracle.effective_sample_size(ratios))
    assert 1 / len(ratios) - 1e-9 <= share.item() <= 1
    assert_matches(effective_sample_size(f64(ratios) * factor), share.item())


def test_effective_sample_size_of_masked_steps():
    mask = bools([True, False, True])
    assert effective_sample_size(torch.tensor([1.0, math.nan, 3.0]), mask=mask).item() == pytest.approx(0.8)


def test_effective_sample_size_of_huge_ratios_is_finite():
    # 4.85e8 squared a million times fits into float64; it is the largest ratio there is.
    assert effective_sample_size(torch.full((1000,), math.exp(20.0))).item() == 1.0


# Explained variance.


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Returns 1, 5: variance 4. Errors 1, 3: variance 1, so 1 - ¼.
        ([0.0, 2.0], 0.75),
        ([1.0, 5.0], 1.0),
        ([101.0, 105.0], 1.0),
        ([3.0, 3.0], 0.0),
        # Errors -4, 4: variance 16, so 1 - 4.
        ([5.0, 1.0], -3.0),
    ],
)
def test_explained_variance_numbers(values, expected):
    assert explained_variance(f64(values), f64([1.0, 5.0])).item() == expected


@given(pairs())
def test_explained_variance_agrees_with_a_loop(pair):
    values, returns = pair
    assume(oracle.std(returns) > 1e-3)
    expected = oracle.explained_variance(values, returns)
    assert_matches(explained_variance(f64(values), f64(returns)), expected, rtol=1e-6, atol=1e-6)


def test_returns_that_do_not_vary_have_nothing_to_explain():
    assert explained_variance(f64([1.0, 2.0, 3.0]), torch.full((3,), 0.3)).item() == 0.0
    assert explained_variance(f64([1.0]), f64([1.0])).item() == 0.0


def test_explained_variance_of_masked_steps():
    values, returns = torch.tensor([0.0, math.nan, 2.0]), torch.tensor([1.0, math.nan, 5.0])
    assert explained_variance(values, returns, mask=bools([True, False, True])).item() == 0.75


# Living peers and the std of a group.


def test_living_peers_of_two_groups():
    # t = 0: 2 and 2; t = 1: 1 and 2; t = 2: 0 and 2.
    peers = living_peers(ints([2, 1, 3, 3]), ints([4, 4, 9, 9]))
    assert peers.tolist() == [2.0, 1.5, 1.0]


@given(grouped_episodes())
def test_living_peers_agree_with_a_loop(case):
    _, sizes, ids = case
    peers = living_peers(ints(sizes), ints(ids))
    torch.testing.assert_close(peers, torch.tensor(oracle.living_peers(sizes, ids)))


def test_group_std_by_ascending_id():
    # Group 2: 0.2, 0.2. Group 7: 1, 3, about 2. The std of all four is 1.17.
    stds = group_std(torch.tensor([1.0, 0.2, 3.0, 0.2]), ints([7, 2, 7, 2]))
    assert stds.tolist() == [0.0, 1.0]


@given(scored_groups())
def test_group_std_agrees_with_a_loop(case):
    scores, ids = case
    expected = oracle.group_std(scores, ids)
    assert_matches(group_std(f64(scores), ints(ids)), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3, 500.1])
def test_group_std_of_equal_scores_is_exactly_zero(value, dtype):
    for size in (1, 6, 7, 8, 12):
        scores, ids = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.long)
        assert group_std(scores, ids).tolist() == [0.0]


# Types, gradients, nothing to do, errors.


def every_diagnostic(steps, mask=None):
    return [
        *clip_fractions(steps, steps, clip_epsilon=0.2, mask=mask),
        effective_sample_size(steps, mask=mask),
        explained_variance(steps, steps, mask=mask),
    ]


def test_results_are_scalars_without_gradient():
    for result in every_diagnostic(torch.ones(3, requires_grad=True)):
        assert result.shape == ()
        assert not result.requires_grad
    assert not group_std(torch.ones(2, requires_grad=True), ints([0, 0])).requires_grad


def test_nothing_gives_zero_and_not_nan():
    for result in every_diagnostic(torch.zeros(0)):
        assert result.item() == 0.0
    for result in every_diagnostic(torch.full((3,), math.nan), mask=bools([False] * 3)):
        assert result.item() == 0.0
    assert effective_sample_size(torch.zeros(3)).item() == 0.0
    assert living_peers(ints([]), ints([])).tolist() == []
    assert group_std(torch.zeros(0), ints([])).tolist() == []


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_results_are_float32_or_wider(dtype):
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    steps = torch.ones(3, dtype=dtype)
    assert effective_sample_size(steps).dtype is expected
    assert explained_variance(steps, steps).dtype is expected
    assert group_std(steps, ints([0, 0, 0])).dtype is expected


def test_bounds_out_of_range_raise():
    with pytest.raises(ValueError, match="clip_epsilon is 1"):
        clip_fractions(torch.ones(1), torch.ones(1), clip_epsilon=1.0)
    with pytest.raises(ValueError, match="clip_epsilon_high is -1"):
        clip_fractions(torch.ones(1), torch.ones(1), clip_epsilon=0.2, clip_epsilon_high=-1.0)


@pytest.mark.usefixtures("without_shape_hook")
def test_other_shapes_raise_instead_of_broadcasting():
    row, column = torch.ones(3), torch.ones(3, 1)
    with pytest.raises(ValueError, match=r"advantages has shape \[3, 1\]"):
        clip_fractions(row, column, clip_epsilon=0.2)
    with pytest.raises(ValueError, match=r"values has shape \[3, 1\]"):
        explained_variance(column, row)
    with pytest.raises(ValueError, match=r"mask has shape \[2\], the per-step input asks for"):
        effective_sample_size(row, mask=bools([True, True]))
    with pytest.raises(ValueError, match=r"group_ids has shape \[2\]"):
        living_peers(ints([1, 1, 1]), ints([0, 0]))
    with pytest.raises(ValueError, match=r"scores has shape \[3, 1\]"):
        group_std(column, ints([0, 0, 0]))


@pytest.mark.usefixtures("without_shape_hook")
def test_living_peers_names_what_does_not_fit():
    with pytest.raises(ValueError, match=r"^group_ids has .* lengths asks for"):
        living_peers(ints([1, 2]), ints([0]))
