import math

import pytest
import reference as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import FLOAT_DTYPES, assert_matches, f64, ints, lengths, numbers

from grpolib.functional import cispo_objective, clipped_surrogate, importance_ratio
from grpolib.functional.surrogate import clip_bounds

LEVELS = ("step", "episode_mean", "episode_sum")

epsilons = st.floats(0.0, 0.99)
ratios = st.floats(0.0, 10.0)
amounts = st.floats(-10.0, 10.0)


@st.composite
def scored_episodes(draw):
    """(log_probs, old_log_probs, lengths)."""
    sizes = draw(lengths(max_episodes=4, max_length=6))
    return draw(numbers(sum(sizes), bound=6.0)), draw(numbers(sum(sizes), bound=6.0)), sizes


# The ratio.


def test_ratios_of_two_steps():
    # 0.5/0.25 and 0.1/0.4.
    log_probs, old = f64([0.5, 0.1]).log(), f64([0.25, 0.4]).log()
    assert_matches(importance_ratio(log_probs, old), [2.0, 0.25])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        # Log-ratios ln 2, ln 8 | ln ½: means ln 4 and ln ½, sums ln 16 and ln ½.
        ("step", [2.0, 8.0, 0.5]),
        ("episode_mean", [4.0, 4.0, 0.5]),
        ("episode_sum", [16.0, 16.0, 0.5]),
    ],
)
def test_levels(level, expected):
    log_probs = f64([2.0, 8.0, 0.5]).log()
    ratio = importance_ratio(log_probs, f64([0.0] * 3), lengths=ints([2, 1]), level=level)
    assert_matches(ratio, expected)


@given(scored_episodes())
def test_ratios_agree_with_a_loop(case):
    log_probs, old_log_probs, sizes = case
    for level in LEVELS:
        arguments = {"lengths": ints(sizes), "level": level}
        ratio = importance_ratio(f64(log_probs), f64(old_log_probs), **arguments)
        expected = oracle.importance_ratio(*case, level)
        assert_matches(ratio, expected, rtol=1e-8, atol=0)


@given(scored_episodes())
def test_an_untouched_policy_has_ratio_exactly_one(case):
    log_probs = torch.tensor(case[0])
    for level in LEVELS:
        ratio = importance_ratio(log_probs, log_probs, lengths=ints(case[2]), level=level)
        assert ratio.tolist() == [1.0] * len(log_probs)


@given(st.floats(-60, 20, width=32))
def test_inside_the_bound_the_ratio_is_the_plain_exponential(log_ratio):
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([log_ratio], dtype=dtype)
        zero = torch.zeros(1, dtype=dtype)
        assert torch.equal(importance_ratio(x, zero), x.exp())
        for level in LEVELS[1:]:
            assert torch.equal(importance_ratio(x, zero, lengths=ints([1]), level=level), x.exp())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("log_ratio", [20.5, 89.0, 1e4, math.inf])
def test_beyond_the_bound_the_ratio_is_constant(log_ratio, level):
    log_probs = torch.tensor([log_ratio, log_ratio], requires_grad=True)
    ratio = importance_ratio(log_probs, torch.zeros(2), lengths=ints([2]), level=level)
    ratio.sum().backward()
    # exp(20) = 485165195.41.
    assert ratio.tolist() == pytest.approx([485165195.41] * 2, rel=1e-6)
    assert log_probs.grad.tolist() == [0.0, 0.0]


def test_the_bound_applies_to_the_sum_of_an_episode():
    # Each step's log-ratio is 15, the sum 30; the mean is 15.
    log_probs = f64([15.0, 15.0])
    arguments = log_probs, f64([0.0, 0.0])
    assert_matches(importance_ratio(*arguments), [math.exp(15)] * 2)
    for level, expected in (("episode_mean", 15), ("episode_sum", 20)):
        ratio = importance_ratio(*arguments, lengths=ints([2]), level=level)
        assert_matches(ratio, [math.exp(expected)] * 2)


@pytest.mark.parametrize("level", LEVELS)
def test_ratio_gradient_agrees_with_finite_differences(level):
    log_probs = f64([-1.0, -0.5, -2.0, -0.1]).requires_grad_()
    old = f64([-0.7, -0.9, -1.0, -0.3])
    structure = {"lengths": ints([3, 1]), "level": level}
    assert torch.autograd.gradcheck(lambda x: importance_ratio(x, old, **structure), (log_probs,))


@given(scored_episodes())
def test_an_episode_has_the_same_ratio_alone(case):
    log_probs, old_log_probs, sizes = torch.tensor(case[0]), torch.tensor(case[1]), case[2]
    for level in LEVELS:
        together = importance_ratio(log_probs, old_log_probs, lengths=ints(sizes), level=level)
        parts = zip(log_probs.split(sizes), old_log_probs.split(sizes), sizes, strict=True)
        alone = [importance_ratio(new, old, lengths=ints([n]), level=level) for new, old, n in parts]
        assert torch.equal(torch.cat(alone), together)


# The clipped surrogate.

# ε_low 0.2, ε_high 0.28: clip to [0.8, 1.28].
CORNERS = [
    (1.5, 1.0, 1.28),
    (1.25, 1.0, 1.25),
    (0.5, 1.0, 0.5),
    (1.5, -1.0, -1.5),
    (1.25, -1.0, -1.25),
    (0.5, -1.0, -0.8),
    (0.5, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "expected"), CORNERS)
def test_corners(ratio, advantage, expected):
    bounds = {"clip_epsilon": 0.2, "clip_epsilon_high": 0.28}
    assert_matches(clipped_surrogate(f64([ratio]), f64([advantage]), **bounds), [expected])


def test_the_default_bounds_are_both_two_tenths():
    ratio, advantages = f64([1.5, 0.5]), f64([1.0, -1.0])
    assert_matches(clipped_surrogate(ratio, advantages), [1.2, -0.8])
    assert_matches(clipped_surrogate(ratio, advantages, clip_epsilon=0.4), [1.4, -0.6])
    assert_matches(clipped_surrogate(ratio, advantages, clip_epsilon_high=0.1), [1.1, -0.8])


def test_gradient_of_the_corners():
    # Where the clipped branch is chosen the gradient is 0, elsewhere it is A.
    ratio = f64([1.5, 0.5, 1.5, 0.5, 1.1]).requires_grad_()
    clipped_surrogate(ratio, f64([1.0, 1.0, -1.0, -1.0, 2.0])).sum().backward()
    assert ratio.grad.tolist() == [0.0, 1.0, -1.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(5.0, -1.0, -3.0), (2.0, -1.0, -2.0), (0.5, -1.0, -0.8), (5.0, 1.0, 1.2), (5.0, 0.0, 0.0)],
)
def test_dual_clip_bounds_the_cost_of_a_negative_advantage(ratio, advantage, expected):
    ratios = f64([ratio]).requires_grad_()
    objective = clipped_surrogate(ratios, f64([advantage]), dual_clip=3.0)
    assert_matches(objective.detach(), [expected])
    objective.sum().backward()
    assert ratios.grad.item() == (-1.0 if expected == -2.0 else 0.0)


@given(ratios, amounts, epsilons, st.floats(0.0, 5.0), st.none() | st.floats(1.01, 6.0))
def test_the_surrogate_agrees_with_the_formula(ratio, advantage, low, high, dual_clip):
    bounds = {"clip_epsilon": low, "clip_epsilon_high": high, "dual_clip": dual_clip}
    expected = oracle.clipped_surrogate(ratio, advantage, low, high, dual_clip)
    assert_matches(clipped_surrogate(f64([ratio]), f64([advantage]), **bounds), [expected])


@given(ratios, amounts, epsilons, st.floats(0.0, 5.0))
def test_clipping_never_promises_more(ratio, advantage, low, high):
    bounds = {"clip_epsilon": low, "clip_epsilon_high": high}
    clipped = clipped_surrogate(f64([ratio]), f64([advantage]), **bounds).item()
    assert clipped <= ratio * advantage + 1e-12
    assert clipped_surrogate(f64([ratio]), f64([advantage]), **bounds, dual_clip=2.0).item() >= clipped


@given(scored_episodes(), st.data())
def test_at_ratio_one_the_gradient_is_the_policy_gradient(case, data):
    # ∇ρ A at ρ = 1 is A ∇log π, for every objective.
    values, _, sizes = case
    advantages = f64(data.draw(numbers(len(values))))
    log_probs = f64(values).requires_grad_()
    ratio = importance_ratio(log_probs, log_probs.detach())
    for objective in (
        clipped_surrogate(ratio, advantages),
        clipped_surrogate(ratio, advantages, dual_clip=3.0),
        cispo_objective(ratio, advantages, log_probs, clip_epsilon_high=0.2),
    ):
        gradient = torch.autograd.grad(objective.sum(), log_probs, retain_graph=True)[0]
        torch.testing.assert_close(gradient, advantages, rtol=1e-12, atol=1e-12)
    # An episode's ratio spreads the mean of its steps' advantages over them.
    shared = importance_ratio(log_probs, log_probs.detach(), lengths=ints(sizes), level="episode_mean")
    gradient = torch.autograd.grad(clipped_surrogate(shared, advantages).sum(), log_probs)[0]
    expected = [oracle.mean(x) for x in oracle.split(advantages.tolist(), sizes)]
    assert_matches(gradient, oracle.joined([[m] * n for m, n in zip(expected, sizes, strict=True)]))


def test_how_the_mean_is_taken_decides_the_gradient():
    # A = +1 on one step, -1 on three. Weights 1/(N len): ½ | 1/6 each. 1/S: ¼ each. 1/(N · 4): 1/8 each.
    advantages, sizes = f64([1.0, -1.0, -1.0, -1.0]), ints([1, 3])
    for weights, loss, level in (
        ([1 / 2, 1 / 6, 1 / 6, 1 / 6], 0.0, "step"),
        ([1 / 4] * 4, 0.5, "step"),
        ([1 / 8] * 4, 0.25, "step"),
        ([1 / 2, 1 / 6, 1 / 6, 1 / 6], 0.0, "episode_mean"),
    ):
        log_probs = f64([-1.0, -2.0, -3.0, -4.0]).requires_grad_()
        ratio = importance_ratio(log_probs, log_probs.detach(), lengths=sizes, level=level)
        total = -(clipped_surrogate(ratio, advantages) * f64(weights)).sum()
        total.backward()
        assert total.item() == pytest.approx(loss, abs=1e-15)
        assert_matches(log_probs.grad, (-advantages * f64(weights)).tolist())


@pytest.mark.parametrize(("advantage", "objective"), [(1.0, 1.2), (0.0, 0.0), (-1.0, -4.8516520e8)])
def test_a_huge_ratio_stays_finite(advantage, objective):
    # New log-prob -1, old -101: the plain ratio e^100 is inf in float32 and 0 · inf is NaN.
    log_probs = torch.tensor([-1.0], requires_grad=True)
    ratio = importance_ratio(log_probs, torch.tensor([-101.0]))
    value = clipped_surrogate(ratio, torch.tensor([advantage]))
    value.sum().backward()
    assert value.item() == pytest.approx(objective, rel=1e-6)
    assert log_probs.grad.item() == 0.0


def test_no_gradient_reaches_advantages_or_old_log_probs():
    log_probs, old, advantages = (f64([-1.0]).requires_grad_() for _ in range(3))
    ratio = importance_ratio(log_probs, old)
    clipped_surrogate(ratio, advantages).sum().backward(retain_graph=True)
    cispo_objective(ratio, advantages, log_probs, clip_epsilon_high=0.2).sum().backward()
    assert old.grad is None
    assert advantages.grad is None
    assert log_probs.grad is not None


# CISPO.


@pytest.mark.parametrize(
    ("ratio", "bounds", "weight"),
    [
        # The upper bound is 1 + ε_high.
        (9.0, {"clip_epsilon_high": 4.0}, 5.0),
        (9.0, {"clip_epsilon_high": 0.28, "clip_epsilon": 0.2}, 1.28),
        (1.1, {"clip_epsilon_high": 0.28, "clip_epsilon": 0.2}, 1.1),
        (0.1, {"clip_epsilon_high": 0.28, "clip_epsilon": 0.2}, 0.8),
        # No lower bound unless asked.
        (0.1, {"clip_epsilon_high": 0.28}, 0.1),
        (0.0, {"clip_epsilon_high": 0.0}, 0.0),
        (0.5, {"clip_epsilon_high": 0.5, "clip_epsilon": 0.0}, 1.0),
    ],
)
def test_cispo_weights(ratio, bounds, weight):
    # Objective w · A · log π and gradient w · A, beyond the bounds too.
    log_probs = f64([-2.0]).requires_grad_()
    objective = cispo_objective(f64([ratio]), f64([3.0]), log_probs, **bounds)
    objective.sum().backward()
    assert objective.item() == pytest.approx(weight * 3.0 * -2.0)
    assert log_probs.grad.item() == pytest.approx(weight * 3.0)


def test_cispo_ratio_is_a_constant():
    ratio, log_probs = f64([1.1]).requires_grad_(), f64([-2.0]).requires_grad_()
    cispo_objective(ratio, f64([3.0]), log_probs, clip_epsilon_high=0.2).sum().backward()
    assert ratio.grad is None


@given(ratios, amounts, st.floats(-10, 0), st.floats(0, 5), st.none() | epsilons)
def test_cispo_agrees_with_the_formula(ratio, advantage, log_prob, high, low):
    arguments = map(f64, ([ratio], [advantage], [log_prob]))
    objective = cispo_objective(*arguments, clip_epsilon_high=high, clip_epsilon=low)
    assert_matches(objective, [oracle.cispo_objective(ratio, advantage, log_prob, high, low)])


# Types and nothing to do.


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_results_are_float32_or_wider(dtype):
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    ones = torch.ones(2, dtype=dtype)
    for level in LEVELS:
        assert importance_ratio(ones, ones, lengths=ints([2]), level=level).dtype is expected
    assert clipped_surrogate(ones, ones).dtype is expected
    assert clipped_surrogate(ones, ones, dual_clip=2.0).dtype is expected
    assert cispo_objective(ones, ones, ones, clip_epsilon_high=0.2).dtype is expected


def test_no_step_gives_no_row():
    nothing = torch.zeros(0)
    for level in LEVELS:
        assert importance_ratio(nothing, nothing, lengths=ints([]), level=level).tolist() == []
    assert clipped_surrogate(nothing, nothing).tolist() == []
    assert cispo_objective(nothing, nothing, nothing, clip_epsilon_high=0.2).tolist() == []


# Errors.


def test_an_episode_level_needs_lengths():
    for level in LEVELS[1:]:
        with pytest.raises(ValueError, match=f"level '{level}' needs whole episodes: pass lengths"):
            importance_ratio(torch.zeros(2), torch.zeros(2), level=level)


@pytest.mark.parametrize("sizes", [[1], [2, 1], [0, 2]])
def test_lengths_that_do_not_fit_raise(sizes):
    with pytest.raises(ValueError, match="lengths"):
        importance_ratio(torch.zeros(2), torch.zeros(2), lengths=ints(sizes), level="episode_mean")


@pytest.mark.usefixtures("without_shape_hook")
def test_an_unknown_level_raises():
    with pytest.raises(ValueError, match="level is 'token': choose one of 'step', 'episode_mean'"):
        importance_ratio(torch.zeros(2), torch.zeros(2), level="token")


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 1.5, math.nan])
def test_a_low_bound_outside_the_unit_interval_raises(epsilon):
    with pytest.raises(ValueError, match=f"clip_epsilon is {epsilon}"):
        clipped_surrogate(torch.ones(1), torch.ones(1), clip_epsilon=epsilon)
    with pytest.raises(ValueError, match=f"clip_epsilon is {epsilon}"):
        cispo_objective(torch.ones(1), torch.ones(1), torch.ones(1), clip_epsilon_high=0.2, clip_epsilon=epsilon)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan])
def test_a_negative_high_bound_raises(epsilon):
    with pytest.raises(ValueError, match=f"clip_epsilon_high is {epsilon}"):
        clipped_surrogate(torch.ones(1), torch.ones(1), clip_epsilon_high=epsilon)
    with pytest.raises(ValueError, match=f"clip_epsilon_high is {epsilon}"):
        cispo_objective(torch.ones(1), torch.ones(1), torch.ones(1), clip_epsilon_high=epsilon)


def test_an_infinite_high_bound_is_no_bound():
    objective = clipped_surrogate(f64([50.0]), f64([1.0]), clip_epsilon_high=math.inf)
    assert objective.item() == 50.0
    assert clip_bounds(0.2, math.inf) == (0.8, math.inf)


@pytest.mark.parametrize("dual_clip", [1.0, 0.5, -3.0, math.nan])
def test_a_dual_clip_of_one_or_less_raises(dual_clip):
    with pytest.raises(ValueError, match=f"dual_clip is {dual_clip}: give a number above 1"):
        clipped_surrogate(torch.ones(1), torch.ones(1), dual_clip=dual_clip)


@pytest.mark.usefixtures("without_shape_hook")
def test_columns_raise_instead_of_broadcasting():
    row, column = torch.ones(3), torch.ones(3, 1)
    with pytest.raises(ValueError, match=r"old_log_probs has shape \[3, 1\], log_probs asks for \[3\]"):
        importance_ratio(row, column)
    with pytest.raises(ValueError, match=r"advantages has shape \[3, 1\], ratios asks for \[3\]"):
        clipped_surrogate(row, column)
    with pytest.raises(ValueError, match=r"advantages has shape \[3, 1\]"):
        cispo_objective(row, column, row, clip_epsilon_high=0.2)
    with pytest.raises(ValueError, match=r"log_probs has shape \[3, 1\]"):
        cispo_objective(row, row, column, clip_epsilon_high=0.2)


@pytest.mark.parametrize("function", [importance_ratio, clipped_surrogate])
@pytest.mark.parametrize("wide", range(2))
def test_one_wide_argument_makes_the_whole_wide(function, wide):
    arguments = [torch.tensor([-0.3, -1.7]), torch.tensor([-0.7, 0.9])]
    arguments[wide] = arguments[wide].double()
    found = function(*arguments)
    assert found.dtype == torch.float64
    expected = function(*(argument.double() for argument in arguments))
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
