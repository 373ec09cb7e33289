import math

import pytest
import reference as oracle
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ragged import (
    FLOAT_DTYPES,
    assert_matches,
    bools,
    discounts,
    f64,
    grouped_episodes,
    ints,
    numbers,
    scored_groups,
)

from grpolib.functional import (
    discounted_returns,
    group_z_scores,
    leave_one_out_advantages,
    process_supervision_advantages,
    timestep_leave_one_out_advantages,
)

SCALES = ("group", "batch", "none")


def one_group(size):
    return torch.zeros(size, dtype=torch.long)


# Group z-scores: numbers.


def test_the_rewards_1_0_1_0():
    # Mean ½, deviations ±½, population std ½.
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert group_z_scores(scores, one_group(4), scale="none").tolist() == [0.5, -0.5, 0.5, -0.5]
    assert group_z_scores(scores, one_group(4), epsilon=0.0).tolist() == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("options", "for_one", "for_zero"),
    [
        # Three of eight: mean 3/8. Σ d² = 3 · (5/8)² + 5 · (3/8)² = 1.875; std √(1.875/8) = 0.484123, √(1.875/7).
        ({"correction": 1, "epsilon": 0.0}, 1.207615, -0.724569),
        ({"correction": 1, "epsilon": 1e-4}, 1.207381, -0.724429),
        ({"correction": 0, "epsilon": 0.0}, 1.290994, -0.774597),
        ({}, 0.625 / (0.484123 + 1e-4), -0.375 / (0.484123 + 1e-4)),
        ({"scale": "none"}, 0.625, -0.375),
    ],
)
def test_three_of_eight_right(options, for_one, for_zero):
    scores = f64([1.0] * 3 + [0.0] * 5)
    expected = [for_one] * 3 + [for_zero] * 5
    assert_matches(group_z_scores(scores, one_group(8), **options), expected, rtol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_k_of_g_right(size):
    # A right answer gets 1 - k/G, a wrong one -k/G; unanimous groups exactly 0.
    for right in range(size + 1):
        scores = f64([1.0] * right + [0.0] * (size - right))
        advantages = group_z_scores(scores, one_group(size), scale="none")
        expected = [1 - right / size] * right + [-right / size] * (size - right)
        if right in (0, size):
            assert advantages.tolist() == [0.0] * size
        assert_matches(advantages, expected, rtol=1e-12, atol=1e-15)


def test_the_same_reward_counts_more_in_a_hard_group():
    easy, hard = f64([1.0] * 7 + [0.0]), f64([1.0] + [0.0] * 7)
    assert group_z_scores(easy, one_group(8), scale="none")[0].item() == 0.125
    assert group_z_scores(hard, one_group(8), scale="none")[0].item() == 0.875


def test_rows_that_arrive_interleaved():
    # Group 0: all 1. Group 1: 0, 0, 0, 1: mean ¼, Σ d² = ¾, sample std ½.
    scores, ids = f64([1, 0, 1, 0, 1, 0, 1, 1]), ints([0, 1] * 4)
    advantages = group_z_scores(scores, ids, epsilon=0.0, correction=1)
    assert advantages.tolist() == [0.0, -0.5, 0.0, -0.5, 0.0, -0.5, 0.0, 1.5]


def test_uneven_groups_have_their_own_divisor():
    # 1, 0, 1: mean 2/3, Σ d² = 2/3, sample std √⅓. 0, 1: mean ½, Σ d² = ½, sample std √½.
    advantages = group_z_scores(f64([1, 0, 1, 0, 1]), ints([0, 0, 0, 1, 1]), epsilon=0.0, correction=1)
    assert_matches(advantages, [0.577350, -1.154701, 0.577350, -0.707107, 0.707107], rtol=1e-5)


def test_each_group_has_a_mean_and_a_std_of_its_own():
    # Deviations ±1, sample std √2 in both groups. One mean and one std of all four: 0.679, 1.019, -1.019, -0.679.
    advantages = group_z_scores(f64([10, 12, 0, 2]), ints([0, 0, 1, 1]), epsilon=0.0, correction=1)
    assert_matches(advantages, [-0.707107, 0.707107, -0.707107, 0.707107], rtol=1e-5)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        # Both groups have deviations ±1; their population std is 1.
        ("group", [-1.0, 1.0, -1.0, 1.0]),
        ("none", [-1.0, 1.0, -1.0, 1.0]),
        # All four scores: mean 6, Σ d² = 16 + 36 + 36 + 16 = 104, std √26 = 5.099020.
        ("batch", [-0.196116, 0.196116, -0.196116, 0.196116]),
    ],
)
def test_the_batch_scale_divides_by_one_std(scale, expected):
    advantages = group_z_scores(f64([10, 12, 0, 2]), ints([0, 0, 1, 1]), epsilon=0.0, scale=scale)
    assert_matches(advantages, expected, rtol=1e-5)


def test_the_batch_scale_takes_the_correction_and_epsilon():
    # √(104/3) = 5.887841, plus 1.
    options = {"epsilon": 1.0, "correction": 1, "scale": "batch"}
    advantages = group_z_scores(f64([10, 12, 0, 2]), ints([0, 0, 1, 1]), **options)
    assert_matches(advantages[:2], [-1 / 6.887841, 1 / 6.887841], rtol=1e-6)


def test_the_default_epsilon_is_in_the_unit_of_the_score():
    # Deviations ±1e-4 and std 1e-4: 1e-4 / (1e-4 + 1e-4).
    assert_matches(group_z_scores(f64([0.0, 2e-4]), one_group(2)), [-0.5, 0.5])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-4])
@pytest.mark.parametrize("value", [0.1, 0.2, 0.3, 0.35, 0.7, 0.95, 1 / 3, 1.0, 500.1])
def test_equal_scores_are_exactly_zero(value, epsilon, dtype):
    for size in (2, 4, 6, 7, 8, 12, 31):
        scores = torch.full((size,), value, dtype=dtype)
        for scale in SCALES:
            for correction in (0, 1):
                options = {"epsilon": epsilon, "correction": correction, "scale": scale}
                assert group_z_scores(scores, one_group(size), **options).tolist() == [0.0] * size
        assert leave_one_out_advantages(scores, one_group(size)).tolist() == [0.0] * size


def test_an_equal_group_beside_a_varied_one_is_exactly_zero():
    scores, ids = torch.tensor([0.3, 0.0, 0.3, 1.0, 0.3]), ints([0, 1, 0, 1, 0])
    for scale in SCALES:
        assert group_z_scores(scores, ids, epsilon=0.0, scale=scale)[[0, 2, 4]].tolist() == [0.0] * 3
    assert leave_one_out_advantages(scores, ids)[[0, 2, 4]].tolist() == [0.0] * 3


def test_equal_means_equal_and_not_close():
    # One member above seven equal ones, by any amount: d = (7h/8, -h/8 ...), std = h √7/8.
    scores = torch.tensor([0.2] * 7 + [0.2000001])
    expected = [-1 / math.sqrt(7)] * 7 + [math.sqrt(7)]
    advantages = group_z_scores(scores.double(), one_group(8), epsilon=0.0)
    assert_matches(advantages, expected, rtol=1e-6)
    assert group_z_scores(scores, one_group(8), epsilon=0.0)[-1].item() == pytest.approx(math.sqrt(7))


def test_scores_too_close_for_a_std_are_zero_and_not_infinite():
    # (5e-201)² underflows, so the std is 0 though the scores differ.
    assert group_z_scores(f64([0.0, 1e-200]), one_group(2), epsilon=0.0).tolist() == [0.0, 0.0]


# Group z-scores: laws.


@pytest.mark.parametrize("scale", SCALES)
@given(scored_groups(), st.sampled_from([1e-4, 1e-2, 1.0]), st.sampled_from([0, 1]))
def test_z_scores_agree_with_a_loop(scale, case, epsilon, correction):
    scores, ids = case
    options = {"epsilon": epsilon, "correction": correction, "scale": scale}
    advantages = group_z_scores(f64(scores), ints(ids), **options)
    assert_matches(advantages, oracle.group_z_scores(scores, ids, **options), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("scale", SCALES)
@given(scored_groups())
def test_advantages_sum_to_zero_in_each_group(scale, case):
    scores, ids = case
    for advantages in (
        group_z_scores(f64(scores), ints(ids), scale=scale),
        leave_one_out_advantages(f64(scores), ints(ids)),
    ):
        for label in set(ids):
            assert abs(sum(advantages[i].item() for i in oracle.members(ids, label))) < 1e-9


@st.composite
def whole_scores(draw):
    """Scores that are whole numbers, so that shifts and powers of two are exact."""
    _, ids = draw(scored_groups())
    return draw(st.lists(st.integers(-1000, 1000), min_size=len(ids), max_size=len(ids))), ids


@pytest.mark.parametrize("scale", SCALES)
@given(whole_scores(), st.integers(-1000, 1000), st.integers(-4, 4))
def test_a_shift_changes_nothing_and_a_scale_only_the_unit(scale, case, shift, power):
    scores, ids = f64(case[0]), ints(case[1])
    advantages = group_z_scores(scores, ids, epsilon=0.0, scale=scale)
    unit = 2.0**power if scale == "none" else 1.0
    shifted = group_z_scores(scores + shift, ids, epsilon=0.0, scale=scale)
    scaled = group_z_scores(scores * 2.0**power, ids, epsilon=0.0, scale=scale)
    assert torch.equal(scaled, advantages * unit)
    if scale == "batch":
        torch.testing.assert_close(shifted, advantages)
    else:
        assert torch.equal(shifted, advantages)


@given(scored_groups(), st.randoms(use_true_random=False))
def test_a_permutation_of_the_rows_permutes_the_advantages(case, random):
    scores, ids = f64(case[0]), ints(case[1])
    order = list(range(len(ids)))
    random.shuffle(order)
    for function in (group_z_scores, leave_one_out_advantages):
        shuffled = function(scores[order], ids[order])
        torch.testing.assert_close(shuffled, function(scores, ids)[order], rtol=1e-9, atol=1e-9)


@given(scored_groups(), numbers(3))
def test_another_group_leaves_the_bits_alone(case, more):
    scores, ids = f64(case[0]), ints(case[1])
    longer, longer_ids = torch.cat([f64(more), scores]), torch.cat([ints([99] * 3), ids])
    for function in (group_z_scores, leave_one_out_advantages):
        assert torch.equal(function(longer, longer_ids)[3:], function(scores, ids))


@given(scored_groups())
def test_the_names_of_the_groups_do_not_matter(case):
    scores, ids = f64(case[0]), ints(case[1])
    for function in (group_z_scores, leave_one_out_advantages):
        assert torch.equal(function(scores, 1000 - 7 * ids), function(scores, ids))


# Leave one out.


def test_leave_one_out_of_three_of_eight_right():
    # 1 - 2/7 = 0.714286 and 0 - 3/7 = -0.428571.
    advantages = leave_one_out_advantages(f64([1.0] * 3 + [0.0] * 5), one_group(8))
    assert_matches(advantages, [5 / 7] * 3 + [-3 / 7] * 5)


@given(scored_groups())
def test_leave_one_out_agrees_with_a_loop(case):
    scores, ids = case
    expected = oracle.leave_one_out_advantages(scores, ids)
    assert_matches(leave_one_out_advantages(f64(scores), ints(ids)), expected)


@given(scored_groups())
def test_leave_one_out_is_the_centred_score_enlarged(case):
    # r - mean = (G - 1)/G · (r - mean of the others).
    scores, ids = f64(case[0]), ints(case[1])
    sizes = torch.tensor([case[1].count(label) for label in case[1]])
    centred = group_z_scores(scores, ids, scale="none")
    expected = leave_one_out_advantages(scores, ids) * (sizes - 1) / sizes
    torch.testing.assert_close(centred, expected, rtol=1e-9, atol=1e-9)


# Process supervision.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Rewards 1, 0 and 2, 1: mean 1, deviations 0, -1, 1, 0, population std √½, so z = 0, -√2, √2, 0.
        ({"epsilon": 0.0}, [-math.sqrt(2), -math.sqrt(2), math.sqrt(2), 0.0]),
        # Divisor 3: std √⅔, z = 0, -√1.5, √1.5, 0.
        ({"epsilon": 0.0, "correction": 1}, [-math.sqrt(1.5), -math.sqrt(1.5), math.sqrt(1.5), 0.0]),
        ({"epsilon": 0.0, "discount": 0.5}, [-math.sqrt(0.5), -math.sqrt(2), math.sqrt(2), 0.0]),
        ({}, [-1 / (math.sqrt(0.5) + 1e-4)] * 2 + [1 / (math.sqrt(0.5) + 1e-4), 0.0]),
    ],
)
def test_step_rewards_of_a_group_of_two(options, expected):
    case = f64([1.0, 0.0, 2.0, 1.0]), ints([2, 2]), ints([5, 5])
    assert_matches(process_supervision_advantages(*case, **options), expected)


def test_only_given_step_rewards_count():
    # Given: 1 and -1 (mean 0, std 1). The step between carries the reward to go of the one after it.
    rewards, given = f64([1.0, math.nan, -1.0, math.inf]), bools([True, False, True, False])
    case = rewards, ints([1, 3]), ints([0, 0])
    advantages = process_supervision_advantages(*case, epsilon=0.0, reward_mask=given)
    assert advantages.tolist() == [1.0, -1.0, -1.0, 0.0]


def test_a_step_reward_of_zero_is_a_reward():
    # 3, 0, 0: mean 1, std √2. Left out, the zeros would leave one number and no std.
    case = f64([3.0, 0.0, 0.0]), ints([1, 2]), ints([0, 0])
    advantages = process_supervision_advantages(*case, epsilon=0.0)
    assert_matches(advantages, [math.sqrt(2), -math.sqrt(2), -math.sqrt(0.5)])


def test_one_member_with_two_step_rewards_will_do():
    # 0, 2: mean 1, std 1.
    advantages = process_supervision_advantages(f64([0.0, 2.0]), ints([2]), ints([3]), epsilon=0.0)
    assert advantages.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("epsilon", [0.0, 1e-4])
def test_equal_step_rewards_are_exactly_zero(epsilon, dtype):
    case = torch.full((7,), 0.3, dtype=dtype), ints([3, 4]), ints([0, 0])
    assert process_supervision_advantages(*case, epsilon=epsilon).tolist() == [0.0] * 7


@given(grouped_episodes(), discounts, st.sampled_from([0, 1]), st.randoms(use_true_random=False))
def test_process_supervision_agrees_with_a_loop(case, discount, correction, random):
    rewards, sizes, ids = case
    mask = [random.random() < 0.7 for _ in rewards]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for label in set(ids):  # two step rewards in every group
        for i in oracle.members(ids, label)[:2]:
            mask[starts[i]] = True
    options = {"discount": discount, "epsilon": 0.1, "correction": correction}
    for given_mask in (None, mask):
        expected = oracle.process_supervision_advantages(*case, **options, reward_mask=given_mask)
        tensor = None if given_mask is None else bools(given_mask)
        arguments = f64(rewards), ints(sizes), ints(ids)
        advantages = process_supervision_advantages(*arguments, **options, reward_mask=tensor)
        assert_matches(advantages, expected, rtol=1e-7, atol=1e-7)


@given(scored_groups())
def test_process_supervision_of_single_steps_is_the_z_score(case):
    scores, ids = f64(case[0]), ints(case[1])
    advantages = process_supervision_advantages(scores, torch.ones_like(ids), ids)
    assert torch.equal(advantages, group_z_scores(scores, ids))


# Leave one out per time step.


def test_rewards_to_go_against_the_others_still_running():
    # Rewards to go, γ = 1: a: 3, 2; b: 5; c: 7, 6, 4.
    # t = 0: 3 - (5 + 7)/2, 5 - (3 + 7)/2, 7 - (3 + 5)/2. t = 1: 2 - 6, 6 - 2.
    # t = 2: c alone, so against all steps of a and b: 4 - (3 + 2 + 5)/3.
    case = f64([1, 2, 5, 1, 2, 4]), ints([2, 1, 3]), ints([0, 0, 0])
    raw = [-3.0, -4.0, 0.0, 3.0, 4.0, 4 - 10 / 3]
    advantages = timestep_leave_one_out_advantages(*case, discount=1.0, normalize=False)
    assert_matches(advantages, raw)
    # Normalised: one division by the std of the six, about their mean, which stays in.
    assert_matches(timestep_leave_one_out_advantages(*case, discount=1.0), [a / oracle.std(raw) for a in raw])


def test_each_time_step_has_a_scale_of_its_own():
    # Two members of two steps, rewards to go 10, 2 | 2, 1: raw 8, 1 | -8, -1, mean squares 64 and 1, of all 32.5.
    # Their scales: sqrt(64 + 0.01 * 32.5) and sqrt(1 + 0.325): the late step counts nearly as much as the early one.
    case = f64([8, 2, 1, 1]), ints([2, 2]), ints([0, 0])
    advantages = timestep_leave_one_out_advantages(*case, discount=1.0, normalize="timestep")
    early, late = 8 / math.sqrt(64.325), 1 / math.sqrt(1.325)
    assert_matches(advantages, [early, late, -early, -late])


@given(grouped_episodes(), discounts)
def test_no_time_step_outweighs_the_others(case, discount):
    rewards, sizes, ids = case
    arguments = f64(rewards), ints(sizes), ints(ids)
    advantages = timestep_leave_one_out_advantages(*arguments, discount=discount, normalize="timestep")
    for label in set(ids):
        pieces = [advantages.split(sizes)[i] for i in oracle.members(ids, label)]
        for t in range(max(len(piece) for piece in pieces)):
            there = torch.stack([piece[t] for piece in pieces if len(piece) > t])
            assert there.square().mean() <= 1 + 1e-12


@given(grouped_episodes(), st.floats(1e-150, 1e150))
def test_a_scale_per_time_step_takes_the_unit_away(case, unit):
    rewards, sizes, ids = case
    structure = ints(sizes), ints(ids)
    options = {"discount": 0.9, "normalize": "timestep"}
    whole = f64([round(reward) for reward in rewards])  # what differs does so by more than rounding
    before, after = (timestep_leave_one_out_advantages(whole * u, *structure, **options) for u in (1.0, unit))
    torch.testing.assert_close(before, after, rtol=1e-6, atol=1e-6)


def test_rewards_to_go_are_discounted():
    # γ = ½: a: 1 + ½ · 2 = 2, 2; b: 4. t = 0: 2 - 4, 4 - 2. t = 1: a alone, 2 - 4.
    case = f64([1, 2, 4]), ints([2, 1]), ints([0, 0])
    advantages = timestep_leave_one_out_advantages(*case, discount=0.5, normalize=False)
    assert advantages.tolist() == [-2.0, -2.0, 2.0]


def test_the_mean_over_all_steps_weights_steps_and_not_episodes():
    # d is alone at t = 3. The others' rewards to go: 1, 1, 1 (three steps) and 9 (one step): mean 12/4 = 3, not 5.
    case = f64([0, 0, 1, 9, 0, 0, 0, 5]), ints([3, 1, 4]), ints([0, 0, 0])
    advantages = timestep_leave_one_out_advantages(*case, discount=1.0, normalize=False)
    assert advantages[-1].item() == 2.0


def test_groups_do_not_meet():
    # The same time steps, two interleaved groups of two.
    case = f64([1, 10, 3, 50]), ints([1, 1, 1, 1]), ints([4, 2, 4, 2])
    advantages = timestep_leave_one_out_advantages(*case, discount=1.0, normalize=False)
    assert advantages.tolist() == [-2.0, -40.0, 2.0, 40.0]


@given(grouped_episodes(), discounts, st.sampled_from([True, False, "timestep"]))
def test_timestep_leave_one_out_agrees_with_a_loop(case, discount, normalize):
    rewards, sizes, ids = case
    arguments = f64(rewards), ints(sizes), ints(ids)
    raw = oracle.timestep_leave_one_out_advantages(*case, discount, normalize=False)
    # Below that a normalised advantage is rounding alone; exact zeros have tests of their own.
    assume(not normalize or oracle.std(raw) > 1e-6)
    advantages = timestep_leave_one_out_advantages(*arguments, discount=discount, normalize=normalize)
    expected = oracle.timestep_leave_one_out_advantages(*case, discount, normalize)
    assert_matches(advantages, expected, rtol=1e-6, atol=1e-6)


@given(grouped_episodes(), discounts)
def test_a_group_has_the_same_bits_alone(case, discount):
    rewards, sizes, ids = case
    options = {"discount": discount, "normalize": False}
    together = timestep_leave_one_out_advantages(f64(rewards), ints(sizes), ints(ids), **options)
    pieces, found = oracle.split(rewards, sizes), together.split(sizes)
    for label in set(ids):
        chosen = oracle.members(ids, label)
        alone = timestep_leave_one_out_advantages(
            f64(oracle.joined([pieces[i] for i in chosen])),
            ints([sizes[i] for i in chosen]),
            ints([label] * len(chosen)),
            **options,
        )
        assert torch.equal(alone, torch.cat([found[i] for i in chosen]))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("normalize", [True, False, "timestep"])
def test_identical_members_are_exactly_zero(normalize, dtype):
    rewards = torch.tensor([0.1, 0.7, 0.3] * 5, dtype=dtype)
    case = rewards, ints([3] * 5), one_group(5)
    advantages = timestep_leave_one_out_advantages(*case, discount=0.9, normalize=normalize)
    assert advantages.tolist() == [0.0] * 15


def test_a_spread_of_exactly_zero_gives_zeros():
    # Two members, rewards to go 1, 1 | 1: t = 0: 0, 0; t = 1 alone: 1 - 1.
    case = f64([0, 1, 1]), ints([2, 1]), ints([0, 0])
    assert timestep_leave_one_out_advantages(*case, discount=1.0).tolist() == [0.0, 0.0, 0.0]


@given(scored_groups())
def test_single_steps_make_it_plain_leave_one_out(case):
    scores, ids = f64(case[0]), ints(case[1])
    options = {"discount": 0.9, "normalize": False}
    advantages = timestep_leave_one_out_advantages(scores, torch.ones_like(ids), ids, **options)
    assert torch.equal(advantages, leave_one_out_advantages(scores, ids))


@given(grouped_episodes(), st.floats(-50, 50))
def test_a_reward_at_the_last_common_step_cancels(case, bonus):
    # With equal lengths, the same bonus for every member at the end moves all rewards to go alike.
    rewards, sizes, ids = case
    size = min(sizes)
    pieces = [piece[:size] for piece in oracle.split(rewards, sizes)]
    with_bonus = [[*piece[:-1], piece[-1] + bonus] for piece in pieces]
    structure = ints([size] * len(ids)), ints(ids)
    options = {"discount": 0.9, "normalize": False}
    before, after = (
        timestep_leave_one_out_advantages(f64(oracle.joined(p)), *structure, **options) for p in (pieces, with_bonus)
    )
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-9)


# Types, gradients, nothing to do.


def every_function(scores, ids):
    """Each estimator on episodes of one step."""
    ones = torch.ones_like(ids)
    return [
        group_z_scores(scores, ids),
        group_z_scores(scores, ids, scale="batch"),
        group_z_scores(scores, ids, scale="none"),
        leave_one_out_advantages(scores, ids),
        process_supervision_advantages(scores, ones, ids),
        timestep_leave_one_out_advantages(scores, ones, ids, discount=1.0),
        timestep_leave_one_out_advantages(scores, ones, ids, discount=1.0, normalize=False),
        timestep_leave_one_out_advantages(scores, ones, ids, discount=1.0, normalize="timestep"),
    ]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_results_are_float32_or_wider(dtype):
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    for advantages in every_function(torch.tensor([1.0, 2.0], dtype=dtype), one_group(2)):
        assert advantages.dtype is expected


def test_results_carry_no_gradient():
    scores = f64([1.0, 2.0]).requires_grad_()
    for advantages in every_function(scores, one_group(2)):
        assert not advantages.requires_grad


def test_nothing_gives_nothing():
    for advantages in every_function(torch.zeros(0), one_group(0)):
        assert advantages.tolist() == []


def test_large_scores_keep_their_differences():
    # float32 holds 1e7 and 1e7 + 1; a float32 mean of eight of them does not hold its eighth.
    scores = torch.tensor([1e7] * 7 + [1e7 + 1])
    assert group_z_scores(scores, one_group(8), scale="none").tolist() == [-0.125] * 7 + [0.875]
    assert leave_one_out_advantages(scores, one_group(8))[-1].item() == 1.0


# Errors.


@pytest.mark.parametrize("function", [group_z_scores, leave_one_out_advantages])
def test_a_group_of_one_raises(function):
    with pytest.raises(ValueError, match=r"group 7 has one member.*at least 2 episodes"):
        function(torch.tensor([1.0, 3.0, 2.0]), ints([2, 7, 2]))


def test_a_group_of_one_raises_per_time_step():
    with pytest.raises(ValueError, match="group 7 has one member"):
        timestep_leave_one_out_advantages(torch.ones(4), ints([1, 2, 1]), ints([2, 7, 2]), discount=1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("function", [group_z_scores, leave_one_out_advantages])
def test_a_score_that_is_not_finite_is_named(function, bad):
    # Group 7's rows are 1 and 3: the bad one is its member 1.
    with pytest.raises(ValueError, match=f"group 7, member 1: the score is {bad}"):
        function(torch.tensor([1.0, 2.0, 3.0, bad]), ints([2, 7, 2, 7]))


def step_functions():
    return [
        process_supervision_advantages,
        lambda *case: timestep_leave_one_out_advantages(*case, discount=1.0),
    ]


@pytest.mark.parametrize("function", step_functions())
def test_a_reward_that_is_not_finite_is_named(function):
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0, math.nan, 6.0])
    with pytest.raises(ValueError, match="group 7, member 1, step 1: the reward is nan"):
        function(rewards, ints([1, 1, 1, 3]), ints([2, 7, 2, 7]))


def test_fewer_than_two_step_rewards_raise():
    case = torch.ones(4), ints([1, 1, 1, 1]), ints([2, 2, 7, 7])
    for mask, count in (([1, 1, 1, 0], 1), ([1, 1, 0, 0], 0)):
        with pytest.raises(ValueError, match=rf"group 7 has {count} step reward\(s\)"):
            process_supervision_advantages(*case, reward_mask=bools(mask))


@pytest.mark.parametrize("epsilon", [-1e-8, math.nan])
def test_a_negative_epsilon_raises(epsilon):
    with pytest.raises(ValueError, match=f"epsilon is {epsilon}"):
        group_z_scores(torch.ones(2), one_group(2), epsilon=epsilon)
    with pytest.raises(ValueError, match=f"epsilon is {epsilon}"):
        process_supervision_advantages(torch.ones(2), ints([1, 1]), one_group(2), epsilon=epsilon)


@pytest.mark.parametrize("correction", [-1, 2])
def test_an_unknown_correction_raises(correction):
    with pytest.raises(ValueError, match=f"correction is {correction}: choose one of 0, 1"):
        group_z_scores(torch.ones(2), one_group(2), correction=correction)
    with pytest.raises(ValueError, match=f"correction is {correction}"):
        process_supervision_advantages(torch.ones(2), ints([1, 1]), one_group(2), correction=correction)


@pytest.mark.usefixtures("without_shape_hook")
def test_an_unknown_scale_raises():
    with pytest.raises(ValueError, match="scale is 'std': choose one of 'group', 'batch', 'none'"):
        group_z_scores(torch.ones(2), one_group(2), scale="std")


def test_a_discount_outside_the_unit_interval_raises():
    case = torch.ones(2), ints([1, 1]), one_group(2)
    for function in (process_supervision_advantages, timestep_leave_one_out_advantages):
        with pytest.raises(ValueError, match="discount is 2"):
            function(*case, discount=2.0)


@pytest.mark.parametrize("function", step_functions())
def test_lengths_that_do_not_fit_raise(function):
    with pytest.raises(ValueError, match="lengths"):
        function(torch.ones(3), ints([1, 1]), one_group(2))
    with pytest.raises(ValueError, match=r"lengths\[0\] is 0"):
        function(torch.ones(1), ints([0, 1]), one_group(2))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("function", [group_z_scores, leave_one_out_advantages])
def test_scores_in_a_column_raise_instead_of_broadcasting(function):
    with pytest.raises(ValueError, match=r"scores has shape \[3, 1\], group_ids asks for"):
        function(torch.ones(3, 1), one_group(3))
    with pytest.raises(ValueError, match=r"group_ids has shape \[3, 1\]"):
        function(torch.ones(3), one_group(3)[:, None])


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("function", step_functions())
def test_rewards_and_ids_of_another_shape_raise(function):
    with pytest.raises(ValueError, match=r"rewards has shape \[2, 1\]"):
        function(torch.ones(2, 1), ints([1, 1]), one_group(2))
    with pytest.raises(ValueError, match=r"group_ids has shape \[1\]"):
        function(torch.ones(2), ints([1, 1]), one_group(1))


@pytest.mark.usefixtures("without_shape_hook")
def test_a_reward_mask_of_another_shape_raises():
    with pytest.raises(ValueError, match=r"reward_mask has shape \[1\]"):
        process_supervision_advantages(torch.ones(2), ints([1, 1]), one_group(2), reward_mask=bools([True]))


def test_reward_to_go_is_the_one_of_the_returns_module():
    # Against an opponent that never gets anything, the advantage is the reward to go itself.
    rewards, zeros = f64([1.0, 2.0, 4.0]), f64([0.0, 0.0, 0.0])
    case = torch.cat([rewards, zeros]), ints([3, 3]), one_group(2)
    advantages = timestep_leave_one_out_advantages(*case, discount=0.9, normalize=False)
    assert torch.equal(advantages[:3], discounted_returns(rewards, ints([3]), discount=0.9))
