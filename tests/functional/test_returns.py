import math

import pytest
import reference as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import FLOAT_DTYPES, assert_matches, bools, discounts, f64, ints, lengths, numbers

from grpolib.functional import discounted_returns, generalized_advantages, returns


@st.composite
def reward_episodes(draw):
    sizes = draw(lengths(max_episodes=5, max_length=20))
    return draw(numbers(sum(sizes))), sizes


@st.composite
def critic_episodes(draw):
    """(rewards, values, final_values, lengths, terminated)."""
    rewards, sizes = draw(reward_episodes())
    ends = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return rewards, draw(numbers(len(rewards))), draw(numbers(len(sizes))), sizes, ends


def tensors(case):
    rewards, values, final_values, sizes, ends = case
    return f64(rewards), f64(values), f64(final_values), ints(sizes), bools(ends)


# Reward to go.


def test_reward_to_go_of_two_episodes():
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4; the second episode starts anew: 8.
    returns = discounted_returns(torch.tensor([1.0, 2.0, 4.0, 8.0]), ints([3, 1]), discount=0.5)
    assert returns.tolist() == [3.0, 4.0, 4.0, 8.0]


def test_the_discount_is_one_unless_given():
    assert discounted_returns(torch.tensor([1.0, 2.0, 4.0]), ints([3])).tolist() == [7.0, 6.0, 4.0]


def test_discount_zero_leaves_the_rewards():
    # Also before an infinite one: 0 · inf would be NaN.
    rewards = torch.tensor([1.0, 2.0, math.inf])
    assert discounted_returns(rewards, ints([3]), discount=0.0).tolist() == [1.0, 2.0, math.inf]


@given(reward_episodes(), discounts)
def test_reward_to_go_agrees_with_the_sum(case, discount):
    rewards, sizes = case
    returns = discounted_returns(f64(rewards), ints(sizes), discount=discount)
    assert_matches(returns, oracle.discounted_returns(rewards, sizes, discount))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1000])
@pytest.mark.parametrize("discount", [0.5, 0.99, 1.0])
def test_a_geometric_series(size, discount):
    # Σ_{k<n} γᵏ = (1 - γⁿ) / (1 - γ) with n steps to the end, or n where γ = 1.
    left = [size - t for t in range(size)]
    expected = [n if discount == 1 else (1 - discount**n) / (1 - discount) for n in left]
    returns = discounted_returns(f64([1.0] * size), ints([size]), discount=discount)
    assert_matches(returns, expected, rtol=1e-12)


def test_sums_are_float64_inside():
    # float32's 0.1 a thousand times: the exact sum rounded once; adding in float32 misses it.
    tenth = torch.tensor(0.1).item()
    returns = discounted_returns(torch.full((1000,), 0.1), ints([1000]))
    assert returns[0].item() == torch.tensor(1000 * tenth, dtype=torch.float64).float().item()


@given(critic_episodes(), discounts, discounts, st.randoms(use_true_random=False))
def test_an_episode_has_the_same_bits_alone_and_in_any_order(case, discount, gae_lambda, random):
    rewards, values, final_values, sizes, ends = case
    episodes = list(
        zip(oracle.split(rewards, sizes), oracle.split(values, sizes), final_values, sizes, ends, strict=True)
    )

    def compute(chosen):
        reward, value, final_value, size, end = zip(*chosen, strict=True)
        batch = tensors((oracle.joined(reward), oracle.joined(value), final_value, size, end))
        return (
            discounted_returns(batch[0], batch[3], discount=discount).split(list(size)),
            generalized_advantages(*batch, discount=discount, gae_lambda=gae_lambda).split(list(size)),
        )

    together, order = compute(episodes), list(range(len(episodes)))
    random.shuffle(order)
    reordered = compute([episodes[i] for i in order])
    for place, i in enumerate(order):
        alone = compute([episodes[i]])
        for kind in (0, 1):
            assert torch.equal(together[kind][i], alone[kind][0])
            assert torch.equal(together[kind][i], reordered[kind][place])


@given(critic_episodes(), discounts, discounts, st.integers(1, 30))
def test_the_bits_do_not_depend_on_the_size_of_the_blocks(case, discount, gae_lambda, block):
    batch = tensors(case)

    def compute():
        advantages = generalized_advantages(*batch, discount=discount, gae_lambda=gae_lambda)
        return advantages, discounted_returns(batch[0], batch[3], discount=discount)

    whole = compute()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(returns, "BLOCK", block)
        in_blocks = compute()
    assert all(torch.equal(one, other) for one, other in zip(whole, in_blocks, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_number_stays_in_its_episode(bad):
    rewards = torch.tensor([1.0, 2.0, bad, bad, 4.0, 8.0])
    returns = discounted_returns(rewards, ints([2, 2, 2]), discount=0.5)
    assert returns[[0, 1, 4, 5]].tolist() == [2.0, 2.0, 8.0, 8.0]
    assert not returns[[2, 3]].isfinite().any()


# Generalised advantages.

# Three rewards of 1, values 0.5, 0.6, 0.7, γ = 0.9, λ = 0.8, so γλ = 0.72; with 0.8 after the last step:
#   δ₂ = 1 + 0.9 · 0.8 - 0.7 = 1.02,  δ₁ = 1 + 0.9 · 0.7 - 0.6 = 1.03,  δ₀ = 1 + 0.9 · 0.6 - 0.5 = 1.04
#   Â₂ = 1.02,  Â₁ = 1.03 + 0.72 · 1.02 = 1.7644,  Â₀ = 1.04 + 0.72 · 1.7644 = 2.310368
# The other rows put another number after the last step: 0 (terminated), 0.5, 0.7.
TIME_LIMIT = [
    (0.8, False, [2.310368, 1.7644, 1.02]),
    (0.8, True, [1.93712, 1.246, 0.3]),
    (0.5, False, [2.1704, 1.57, 0.75]),
    (0.7, False, [2.263712, 1.6996, 0.93]),
]


@pytest.mark.parametrize(("final_value", "terminated", "expected"), TIME_LIMIT)
def test_the_value_after_the_last_step(final_value, terminated, expected):
    rewards, values = f64([1.0, 1.0, 1.0]), f64([0.5, 0.6, 0.7])
    ends = f64([final_value]), ints([3]), bools([terminated])
    advantages = generalized_advantages(rewards, values, *ends, discount=0.9, gae_lambda=0.8)
    assert_matches(advantages, expected)
    assert rewards.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [
        # Episode one terminates at its second step: δ = 1 + 0.9 · 0.4 - 0.5 = 0.86, 2 - 0.4 = 1.6; 0.86 + 0.72 · 1.6.
        # Episode two is cut: δ = 3 + 0.9 · 0.2 - 0.3 = 2.88, 4 + 0.9 · 0.1 - 0.2 = 3.89; 2.88 + 0.72 · 3.89.
        (0.8, [2.012, 1.6, 5.6808, 3.89]),
        (0.0, [0.86, 1.6, 2.88, 3.89]),
        # Returns 1 + 0.9 · 2 = 2.8, 2; 3 + 0.9 · 4.09 = 6.681, 4 + 0.9 · 0.1 = 4.09; minus the values.
        (1.0, [2.3, 1.6, 6.381, 3.89]),
    ],
)
def test_the_cut_falls_after_the_last_step(gae_lambda, expected):
    rewards, values = f64([1.0, 2.0, 3.0, 4.0]), f64([0.5, 0.4, 0.3, 0.2])
    ends = f64([7.0, 0.1]), ints([2, 2]), bools([True, False])
    advantages = generalized_advantages(rewards, values, *ends, discount=0.9, gae_lambda=gae_lambda)
    assert_matches(advantages, expected)


@given(critic_episodes(), discounts, discounts)
def test_advantages_agree_with_the_recursion(case, discount, gae_lambda):
    advantages = generalized_advantages(*tensors(case), discount=discount, gae_lambda=gae_lambda)
    assert_matches(advantages, oracle.generalized_advantages(*case, discount, gae_lambda))


@given(critic_episodes(), discounts)
def test_lambda_one_is_the_bootstrapped_return_minus_the_value(case, discount):
    rewards, values, final_values, sizes, terminated = tensors(case)
    bootstrapped = rewards.clone()
    bootstrapped[sizes.cumsum(0) - 1] += discount * final_values * ~terminated
    returns = discounted_returns(bootstrapped, sizes, discount=discount)
    advantages = generalized_advantages(*tensors(case), discount=discount, gae_lambda=1.0)
    torch.testing.assert_close(advantages, returns - values, rtol=1e-9, atol=1e-9)


@given(critic_episodes(), discounts)
def test_lambda_zero_is_the_one_step_error(case, discount):
    rewards, values, final_values, sizes, terminated = case
    errors, row = [], 0
    for i, size in enumerate(sizes):
        for t in range(size):
            last = 0.0 if terminated[i] else final_values[i]
            next_value = values[row + 1] if t + 1 < size else last
            errors.append(rewards[row] + discount * next_value - values[row])
            row += 1
    assert_matches(generalized_advantages(*tensors(case), discount=discount, gae_lambda=0.0), errors)


def test_the_final_value_of_a_terminated_episode_is_unread():
    rewards, values = f64([1.0, 1.0]), f64([0.5, 0.5])
    for unread in (math.nan, math.inf, -3.0):
        ends = f64([unread, 2.0]), ints([1, 1]), bools([True, False])
        advantages = generalized_advantages(rewards, values, *ends, discount=0.5, gae_lambda=0.5)
        assert advantages.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("place", ["rewards", "values", "final_values"])
def test_nan_does_not_reach_the_other_episodes(place):
    case = {
        "rewards": f64([1.0] * 6),
        "values": f64([0.5] * 6),
        "final_values": f64([0.0, 0.0, 0.0]),
    }
    ends = {"lengths": ints([2, 2, 2]), "terminated": bools([False] * 3), "discount": 0.9, "gae_lambda": 0.8}
    clean = generalized_advantages(**case, **ends)
    case[place][1 if place == "final_values" else slice(2, 4)] = math.nan
    dirty = generalized_advantages(**case, **ends)
    assert dirty[[0, 1, 4, 5]].equal(clean[[0, 1, 4, 5]])
    assert dirty[3].isnan()


# Types, gradients, nothing to do.


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_results_are_float32_or_wider(dtype):
    rewards, sizes = torch.ones(2, dtype=dtype), ints([2])
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    assert discounted_returns(rewards, sizes).dtype is expected
    ends = torch.ones(1), sizes, bools([True])
    advantages = generalized_advantages(rewards, rewards, *ends, discount=1.0, gae_lambda=1.0)
    assert advantages.dtype is expected


def test_the_wider_of_rewards_and_values_decides():
    ends = torch.ones(1), ints([2]), bools([True])
    for rewards, values in ((torch.ones(2), f64([1.0, 1.0])), (f64([1.0, 1.0]), torch.ones(2))):
        advantages = generalized_advantages(rewards, values, *ends, discount=1.0, gae_lambda=1.0)
        assert advantages.dtype is torch.float64


def test_inputs_are_left_alone_and_get_no_gradient():
    rewards = f64([1.0, 2.0, 3.0]).requires_grad_()
    values = f64([1.0, 2.0, 3.0]).requires_grad_()
    ends = f64([1.0]).requires_grad_(), ints([3]), bools([False])
    assert not discounted_returns(rewards, ints([3])).requires_grad
    advantages = generalized_advantages(rewards, values, *ends, discount=0.9, gae_lambda=0.9)
    assert not advantages.requires_grad
    assert rewards.tolist() == values.tolist() == [1.0, 2.0, 3.0]
    assert ends[0].tolist() == [1.0]


def test_no_episode_gives_no_row():
    nothing, none = torch.zeros(0), ints([])
    assert discounted_returns(nothing, none).tolist() == []
    advantages = generalized_advantages(nothing, nothing, nothing, none, bools([]), discount=0.9, gae_lambda=0.9)
    assert advantages.tolist() == []


# Errors.


@pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
def test_a_discount_outside_the_unit_interval_raises(discount):
    with pytest.raises(ValueError, match=rf"discount is {discount}: .*\[0, 1\]"):
        discounted_returns(torch.ones(1), ints([1]), discount=discount)


@pytest.mark.parametrize(("name", "bad"), [("discount", 1.5), ("gae_lambda", -0.5), ("gae_lambda", math.nan)])
def test_gae_options_outside_the_unit_interval_raise(name, bad):
    options = {"discount": 0.9, "gae_lambda": 0.9, name: bad}
    ends = torch.ones(1), ints([1]), bools([True])
    with pytest.raises(ValueError, match=f"{name} is {bad}"):
        generalized_advantages(torch.ones(1), torch.ones(1), *ends, **options)


@pytest.mark.parametrize("bad", [0, -1])
def test_an_episode_without_steps_raises(bad):
    with pytest.raises(ValueError, match=rf"lengths\[1\] is {bad}: .*at least one step"):
        discounted_returns(torch.ones(2), ints([2, bad]))


@pytest.mark.parametrize("sizes", [[1, 1], [2, 2], []])
def test_lengths_that_do_not_add_up_raise(sizes):
    with pytest.raises(ValueError, match=rf"rewards has shape \[3\], lengths \(which sum to {sum(sizes)}\)"):
        discounted_returns(torch.ones(3), ints(sizes))


@pytest.mark.usefixtures("without_shape_hook")
def test_columns_raise_instead_of_broadcasting():
    with pytest.raises(ValueError, match=r"rewards has shape \[3, 1\]"):
        discounted_returns(torch.ones(3, 1), ints([3]))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("name", ["rewards", "values", "final_values", "terminated"])
def test_gae_columns_raise_instead_of_broadcasting(name):
    case = {
        "rewards": torch.ones(2),
        "values": torch.ones(2),
        "final_values": torch.ones(2),
        "terminated": bools([True, False]),
    }
    case[name] = case[name][:, None]
    with pytest.raises(ValueError, match=rf"{name} has shape \[2, 1\]"):
        generalized_advantages(**case, lengths=ints([1, 1]), discount=0.9, gae_lambda=0.9)
