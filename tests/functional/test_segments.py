import pytest
import reference as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import FLOAT_DTYPES, assert_matches, f64, group_ids, ints, lengths, scored_groups

from grpolib.functional import segments


def test_structure_of_three_episodes():
    sizes = ints([2, 1, 3])
    assert segments.offsets(sizes).tolist() == [0, 2, 3, 6]
    assert segments.episode_ids(sizes).tolist() == [0, 0, 1, 2, 2, 2]
    assert segments.timesteps(sizes).tolist() == [0, 1, 0, 0, 1, 2]
    assert segments.steps_remaining(sizes).tolist() == [1, 0, 0, 2, 1, 0]
    assert segments.longest(sizes) == 3


def test_structure_of_no_episode():
    none = ints([])
    assert segments.offsets(none).tolist() == [0]
    assert segments.episode_ids(none).tolist() == []
    assert segments.timesteps(none).tolist() == []
    assert segments.steps_remaining(none).tolist() == []
    assert segments.longest(none) == 0


@given(lengths())
def test_structure_agrees_with_a_loop(sizes):
    tensor = ints(sizes)
    pairs = [(episode, t) for episode, size in enumerate(sizes) for t in range(size)]
    assert segments.episode_ids(tensor).tolist() == [episode for episode, _ in pairs]
    assert segments.timesteps(tensor).tolist() == [t for _, t in pairs]
    assert segments.steps_remaining(tensor).tolist() == [sizes[i] - 1 - t for i, t in pairs]
    starts = segments.offsets(tensor)
    assert (starts[1:] - starts[:-1]).tolist() == sizes


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_lengths_of_any_integer_type(dtype):
    sizes = torch.tensor([2, 1], dtype=dtype)
    assert segments.episode_ids(sizes).tolist() == [0, 0, 1]
    assert segments.timesteps(sizes).tolist() == [0, 1, 0]


def test_offsets_of_small_integers_do_not_wrap():
    assert segments.offsets(torch.full((3,), 100, dtype=torch.int8)).tolist() == [0, 100, 200, 300]


def test_repeating_on_steps_keeps_the_gradient():
    values = f64([1.0, 2.0]).requires_grad_()
    segments.repeat_on_steps(values, ints([3, 1])).sum().backward()
    assert values.grad.tolist() == [3.0, 1.0]


def test_groups_are_renumbered_in_ascending_order():
    groups = segments.index_groups(ints([7, -2, 7, 50]))
    assert groups.labels.tolist() == [-2, 7, 50]
    assert groups.ids.tolist() == [1, 0, 1, 2]
    assert groups.sizes.tolist() == [1, 2, 1]


@given(group_ids())
def test_member_counts_within_the_group(ids):
    tensor = ints(ids)
    for row, label in enumerate(ids):
        assert segments.member_of(row, tensor) == ids[:row].count(label)


@given(scored_groups())
def test_statistics_agree_with_a_loop(case):
    scores, ids = case
    groups = segments.index_groups(ints(ids))
    num_groups = len(groups.labels)
    pools = [[scores[i] for i in oracle.members(ids, label)] for label in sorted(set(ids))]
    arguments = f64(scores), groups.ids, num_groups
    assert segments.segment_counts(groups.ids, num_groups).tolist() == [len(pool) for pool in pools]
    assert_matches(segments.segment_sums(*arguments), [sum(pool) for pool in pools])
    assert segments.segment_minima(*arguments).tolist() == [min(pool) for pool in pools]
    assert segments.segment_maxima(*arguments).tolist() == [max(pool) for pool in pools]
    assert segments.is_constant(*arguments).tolist() == [min(pool) == max(pool) for pool in pools]
    centred = [scores[i] - oracle.mean(pools[groups.ids[i]]) for i in range(len(ids))]
    assert_matches(segments.segment_deviations(*arguments), centred)
    for correction in (0, 1):
        stds = segments.segment_stds(*arguments, correction=correction)
        assert_matches(stds, [oracle.std(pool, correction) for pool in pools], rtol=1e-7, atol=1e-7)
        overall = segments.overall_std(f64(scores), correction=correction)
        assert_matches(overall, oracle.std(scores, correction), rtol=1e-7, atol=1e-7)


def test_an_empty_segment_is_zero():
    # Segment 1 has no rows, also where the values of the others are negative.
    arguments = f64([-1.0, -3.0]), ints([0, 2]), 3
    assert segments.segment_sums(*arguments).tolist() == [-1.0, 0.0, -3.0]
    assert segments.segment_minima(*arguments).tolist() == [-1.0, 0.0, -3.0]
    assert segments.segment_maxima(*arguments).tolist() == [-1.0, 0.0, -3.0]


def test_sums_are_float64_and_differentiable():
    # 2^24 + 1 does not fit into float32.
    values = torch.tensor([2.0**24, 1.0], requires_grad=True)
    sums = segments.segment_sums(values, ints([0, 0]), 1)
    assert sums.item() == 2**24 + 1
    sums.sum().backward()
    assert values.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@given(value=st.sampled_from([0.1, 0.2, 0.3, 0.7, 1 / 3, 500.1, -0.95]), size=st.integers(2, 33))
def test_equal_values_have_no_deviation_at_all(dtype, value, size):
    values, ids = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.long)
    assert segments.is_constant(values, ids, 1).all()
    assert segments.segment_deviations(values, ids, 1).tolist() == [0.0] * size
    assert segments.segment_stds(values, ids, 1).tolist() == [0.0]
    assert segments.overall_std(values).item() == 0.0


def test_variance_takes_two_passes():
    # Deviations ±1 about 1e9: the mean of the squares minus the square of the mean would give 0 or 128.
    assert segments.overall_std(f64([1e9 - 1, 1e9 + 1])).item() == 1.0
    assert segments.segment_stds(f64([1e9 - 1, 1e9 + 1]), ints([0, 0]), 1).item() == 1.0


def test_overall_std_of_nothing_is_zero():
    nothing = segments.overall_std(torch.zeros(0))
    assert (nothing.item(), nothing.dtype) == (0.0, torch.float64)


def test_widest_dtype():
    half, single, double = (torch.zeros(1, dtype=d) for d in (torch.float16, torch.float32, torch.float64))
    assert segments.at_least_float32(half) is torch.float32
    assert segments.at_least_float32(half, double, single) is torch.float64
    assert segments.at_least_float32(torch.zeros(1, dtype=torch.long)) is torch.float32
