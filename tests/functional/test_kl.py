import math

import pytest
import reference as oracle
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ragged import FLOAT_DTYPES, assert_matches, f64, numbers

from grpolib.functional import categorical_kl, gaussian_kl, kl_k1, kl_k2, kl_k3

ESTIMATORS = (kl_k1, kl_k2, kl_k3)


@st.composite
def logit_pairs(draw):
    size = draw(st.integers(2, 6))
    return draw(numbers(size, bound=5.0)), draw(numbers(size, bound=5.0))


def log_softmax(logits):
    return f64(logits).log_softmax(-1)


# Numbers.


@pytest.mark.parametrize(
    ("estimator", "forth", "back"),
    [
        # log π = -1, log ref = -2: log-ratio 1; k3 = e^-1 + 1 - 1. The other way round: e^1 - 1 - 1.
        (kl_k1, 1.0, -1.0),
        (kl_k2, 0.5, 0.5),
        (kl_k3, 0.367879441, 0.718281828),
    ],
)
def test_a_log_ratio_of_one_either_way(estimator, forth, back):
    assert estimator(f64([-1.0]), f64([-2.0])).item() == pytest.approx(forth, abs=1e-9)
    assert estimator(f64([-2.0]), f64([-1.0])).item() == pytest.approx(back, abs=1e-9)


def test_gradient_of_k3_at_a_log_ratio_of_one():
    # d/d log π (e^d - d - 1) = 1 - e^d = 1 - e^-1.
    log_probs = f64([-1.0]).requires_grad_()
    kl_k3(log_probs, f64([-2.0])).sum().backward()
    assert log_probs.grad.item() == pytest.approx(0.632120559, abs=1e-9)


def test_two_actions():
    # 0.8 ln 1.6 + 0.2 ln 0.4 = 0.192745; 0.5 ln 0.625 + 0.5 ln 2.5 = 0.223144; k2's mean 0.172320 is biased.
    policy, reference = f64([0.8, 0.2]), f64([0.5, 0.5])
    means = [(policy * k(policy.log(), reference.log())).sum().item() for k in ESTIMATORS]
    assert means == pytest.approx([0.192745, 0.172320, 0.192745], abs=1e-6)
    assert categorical_kl(policy.log(), reference.log()).item() == pytest.approx(0.192745, abs=1e-6)
    assert categorical_kl(reference.log(), policy.log()).item() == pytest.approx(0.223144, abs=1e-6)


@given(st.floats(-15, 15), st.floats(-15, 15))
def test_estimators_agree_with_the_formulas(log_prob, reference_log_prob):
    assume(abs(log_prob - reference_log_prob) < 15)
    for estimator, formula in ((kl_k1, oracle.kl_k1), (kl_k2, oracle.kl_k2), (kl_k3, oracle.kl_k3)):
        actual = estimator(f64([log_prob]), f64([reference_log_prob]))
        assert_matches(actual, [formula(log_prob, reference_log_prob)], rtol=1e-8, atol=1e-8)


def test_no_divergence_from_itself():
    log_probs = torch.tensor([-0.1, -3.7, -50.0])
    for estimator in ESTIMATORS:
        assert estimator(log_probs, log_probs).tolist() == [0.0, 0.0, 0.0]


# Laws: value.


@given(logit_pairs())
def test_k1_and_k3_are_unbiased(pair):
    log_policy, log_reference = map(log_softmax, pair)
    divergence = oracle.categorical_kl(*pair)
    for estimator in (kl_k1, kl_k3):
        mean = (log_policy.exp() * estimator(log_policy, log_reference)).sum()
        assert_matches(mean, divergence, rtol=1e-8, atol=1e-10)


@given(st.floats(-100, 0), st.floats(-100, 0))
def test_k2_and_k3_are_not_negative(log_prob, reference_log_prob):
    for estimator in (kl_k2, kl_k3):
        assert estimator(f64([log_prob]), f64([reference_log_prob])).item() >= -1e-14


@given(st.floats(-20, 20, width=32))
def test_k3_is_bit_identical_to_the_plain_formula(difference):
    for dtype in (torch.float32, torch.float64):
        d = torch.tensor([difference], dtype=dtype)
        assert torch.equal(kl_k3(torch.zeros(1, dtype=dtype), d), d.exp() - d - 1)


# Laws: gradient. The mean over π's own samples, written out over a small softmax.


def gradient_as_a_loss(estimator, logits, reference_logits):
    """Σₐ π(a) ∇k(log π(a), log ref(a)), with π(a) the constant weight that sampling gives."""
    logits = f64(logits).requires_grad_()
    log_policy = logits.log_softmax(-1)
    loss = (log_policy.exp().detach() * estimator(log_policy, log_softmax(reference_logits))).sum()
    return torch.autograd.grad(loss, logits)[0]


def gradient_of_divergence(logits, reference_logits, *, reverse):
    logits = f64(logits).requires_grad_()
    log_policy, log_reference = logits.log_softmax(-1), log_softmax(reference_logits)
    if reverse:
        divergence = (log_policy.exp() * (log_policy - log_reference)).sum()
    else:
        divergence = (log_reference.exp() * (log_reference - log_policy)).sum()
    return torch.autograd.grad(divergence, logits)[0]


@given(logit_pairs())
def test_k1_as_a_loss_has_no_mean_gradient(pair):
    gradient = gradient_as_a_loss(kl_k1, *pair)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-14)


@given(logit_pairs())
def test_k2_as_a_loss_descends_the_reverse_divergence(pair):
    expected = gradient_of_divergence(*pair, reverse=True)
    torch.testing.assert_close(gradient_as_a_loss(kl_k2, *pair), expected, rtol=1e-9, atol=1e-12)


@given(logit_pairs())
def test_k3_as_a_loss_descends_the_forward_divergence(pair):
    expected = gradient_of_divergence(*pair, reverse=False)
    torch.testing.assert_close(gradient_as_a_loss(kl_k3, *pair), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_agree_with_finite_differences(estimator):
    log_probs = f64([-1.0, -0.2, -5.0, -22.0, -30.0]).requires_grad_()
    reference = f64([-2.0, -0.2, -0.1, -1.0, -1.0])
    assert torch.autograd.gradcheck(lambda x: estimator(x, reference), (log_probs,))


# Far from the reference.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("difference", [20.0, 20.5, 88.0, 89.0, 100.0, 1e4, 1e20])
def test_k3_is_finite_far_above_and_pulls_the_right_way(difference, dtype):
    log_probs = torch.tensor([-difference], dtype=dtype, requires_grad=True)
    value = kl_k3(log_probs, torch.zeros(1, dtype=dtype))
    value.sum().backward()
    slope = math.expm1(20.0)
    expected = math.exp(20.0) - 21.0 + slope * (difference - 20.0)
    assert value.item() == pytest.approx(expected, rel=1e-6)
    # d k3/d log π = -(e^20 - 1): descending it makes the action likelier, as the reference has it.
    assert log_probs.grad.item() == pytest.approx(-slope, rel=1e-6)


def test_k3_far_below():
    # e^-100 + 100 - 1 = 99, gradient 1 - e^-100.
    log_probs = torch.tensor([0.0], requires_grad=True)
    value = kl_k3(log_probs, torch.tensor([-100.0]))
    value.sum().backward()
    assert value.item() == 99.0
    assert log_probs.grad.item() == 1.0


def test_k3_has_no_step_where_the_tangent_begins():
    below, above = f64([19.999999]), f64([20.000001])
    zero = f64([0.0])
    gap = (kl_k3(zero, above) - kl_k3(zero, below)).item()
    assert gap == pytest.approx(math.expm1(20.0) * 2e-6, rel=1e-5)


# Types and gradients of the reference.


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_half_precision_is_computed_in_float32(dtype):
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    log_probs = torch.tensor([-12.5], dtype=dtype, requires_grad=True)
    reference = torch.tensor([-0.25], dtype=dtype)
    for estimator in ESTIMATORS:
        value = estimator(log_probs, reference)
        assert value.dtype is expected
        # In float16, exp(12.25) would overflow.
        assert torch.equal(value, estimator(log_probs.to(expected), reference.to(expected)))
        gradient = torch.autograd.grad(value.sum(), log_probs)[0]
        assert gradient.dtype is dtype


def test_the_wider_input_decides():
    assert kl_k1(torch.zeros(1), f64([0.0])).dtype is torch.float64
    assert kl_k1(f64([0.0]), torch.zeros(1)).dtype is torch.float64


def test_no_gradient_reaches_the_reference():
    log_probs, reference = f64([-1.0]).requires_grad_(), f64([-2.0]).requires_grad_()
    for estimator in ESTIMATORS:
        estimator(log_probs, reference).sum().backward()
    logits, reference_logits = f64([0.0, 1.0]).requires_grad_(), f64([1.0, 1.0]).requires_grad_()
    categorical_kl(logits, reference_logits).backward()
    gaussian = [f64([1.5]).requires_grad_() for _ in range(4)]
    gaussian_kl(*gaussian).backward()
    assert [x.grad for x in (reference, reference_logits, *gaussian[2:])] == [None] * 4
    assert None not in [x.grad for x in (log_probs, logits, *gaussian[:2])]


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_any_shape_is_kept(shape):
    for estimator in ESTIMATORS:
        assert estimator(torch.zeros(shape), torch.zeros(shape)).shape == shape


# Exact divergences.


@given(logit_pairs())
def test_categorical_agrees_with_the_sum(pair):
    divergence = categorical_kl(f64(pair[0]), f64(pair[1]))
    assert_matches(divergence, oracle.categorical_kl(*pair))
    assert divergence.item() >= -1e-14


@given(logit_pairs())
def test_categorical_gradient_is_the_reverse_one(pair):
    logits = f64(pair[0]).requires_grad_()
    gradient = torch.autograd.grad(categorical_kl(logits, f64(pair[1])), logits)[0]
    expected = gradient_of_divergence(*pair, reverse=True)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_forbidden_actions():
    # Both forbid action 2: as if there were two actions. Only π forbids it: ref (⅓, ⅓, ⅓), KL = ln(3/2).
    logits = f64([[0.0, 0.0, -math.inf]] * 2).requires_grad_()
    reference = f64([[math.log(3.0), 0.0, -math.inf], [0.0, 0.0, 0.0]])
    divergence = categorical_kl(logits, reference)
    # ½ ln(½ / ¾) + ½ ln(½ / ¼) = ½ ln(4/3)
    assert_matches(divergence, [0.5 * math.log(4 / 3), math.log(1.5)])
    divergence.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[:, 2].tolist() == [0.0, 0.0]


def test_an_action_that_only_the_reference_forbids():
    assert categorical_kl(torch.zeros(2), torch.tensor([0.0, -math.inf])).item() == math.inf


def test_a_probability_that_underflows():
    assert categorical_kl(torch.tensor([0.0, -1000.0]), torch.tensor([0.0, -math.inf])).item() == 0.0


@given(numbers(2, bound=5.0), numbers(2, bound=5.0), st.lists(st.floats(0.1, 10), min_size=4, max_size=4))
def test_gaussian_agrees_with_the_closed_form(mean, reference_mean, stds):
    arguments = mean, stds[:2], reference_mean, stds[2:]
    divergence = gaussian_kl(*map(f64, arguments))
    assert_matches(divergence, oracle.gaussian_kl(*arguments), rtol=1e-8, atol=1e-8)
    first, second = torch.distributions.Normal(*map(f64, arguments[:2])), arguments[2:]
    torchs = torch.distributions.kl_divergence(first, torch.distributions.Normal(*map(f64, second)))
    torch.testing.assert_close(divergence, torchs.sum(), rtol=1e-8, atol=1e-8)


def test_gaussian_numbers():
    # A mean one std off: ½. Twice the std: ½ (4 - 1) - ln 2. Half of it: ½ (¼ - 1) + ln 2. Itself: 0.
    means, stds = f64([[1.0], [0.0], [0.0], [3.0]]), f64([[1.0], [2.0], [0.5], [7.0]])
    reference_means, reference_stds = f64([[0.0], [0.0], [0.0], [3.0]]), f64([[1.0], [1.0], [1.0], [7.0]])
    divergence = gaussian_kl(means, stds, reference_means, reference_stds)
    assert_matches(divergence, [0.5, 1.5 - math.log(2), -0.375 + math.log(2), 0.0])


def test_gaussian_with_tiny_stds_is_finite():
    # σ² = 1e-60 would underflow in float32; σ/σ_ref does not.
    tiny, zero = torch.full((1, 1), 1e-30), torch.zeros(1, 1)
    assert gaussian_kl(zero, tiny, zero, tiny).tolist() == [0.0]


def test_gaussian_gradient_agrees_with_finite_differences():
    mean, std = f64([0.3, -1.0]).requires_grad_(), f64([0.5, 2.0]).requires_grad_()
    reference = f64([0.0, 1.0]), f64([1.0, 0.7])
    assert torch.autograd.gradcheck(lambda m, s: gaussian_kl(m, s, *reference), (mean, std))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_exact_divergences_are_float32_or_wider(dtype):
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    ones = torch.ones(3, 2, dtype=dtype)
    for divergence in (categorical_kl(ones, ones), gaussian_kl(ones, ones, ones, ones)):
        assert divergence.dtype is expected
        assert divergence.tolist() == [0.0, 0.0, 0.0]


# Errors.


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_another_shape_raises_instead_of_broadcasting(estimator):
    with pytest.raises(ValueError, match=r"reference_log_probs has shape \[3, 1\], log_probs asks for \[3\]"):
        estimator(torch.zeros(3), torch.zeros(3, 1))


@pytest.mark.usefixtures("without_shape_hook")
def test_exact_divergences_do_not_broadcast():
    with pytest.raises(ValueError, match=r"reference_logits has shape \[2\]"):
        categorical_kl(torch.zeros(3, 2), torch.zeros(2))
    full, row = torch.ones(3, 2), torch.ones(2)
    for name, case in (
        ("std", (full, row, full, full)),
        ("reference_mean", (full, full, row, full)),
        ("reference_std", (full, full, full, row)),
    ):
        with pytest.raises(ValueError, match=rf"{name} has shape \[2\]"):
            gaussian_kl(*case)


@pytest.mark.parametrize("wide", range(4))
def test_one_wide_argument_of_the_gaussian_kl_makes_the_whole_wide(wide):
    arguments = [torch.tensor([[0.5, -1.0]]), torch.tensor([[1.5, 0.5]]), torch.tensor([[0.25, 2.0]]), torch.ones(1, 2)]
    arguments[wide] = arguments[wide].double()
    found = gaussian_kl(*arguments)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, gaussian_kl(*(argument.double() for argument in arguments)), rtol=1e-14, atol=0)


@pytest.mark.usefixtures("without_shape_hook")
def test_the_gaussian_kl_names_what_does_not_fit():
    with pytest.raises(ValueError, match=r"^reference_std has .* mean asks for"):
        gaussian_kl(torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2, 2), torch.ones(2))


@pytest.mark.parametrize("wide", range(2))
def test_one_wide_argument_of_the_categorical_kl_makes_the_whole_wide(wide):
    arguments = [torch.tensor([[0.5, -1.0]]), torch.tensor([[1.5, 0.5]])]
    arguments[wide] = arguments[wide].double()
    found = categorical_kl(*arguments)
    assert found.dtype == torch.float64
    torch.testing.assert_close(
        found, categorical_kl(*(argument.double() for argument in arguments)), rtol=1e-14, atol=0
    )


@pytest.mark.usefixtures("without_shape_hook")
def test_the_categorical_kl_names_what_does_not_fit():
    with pytest.raises(ValueError, match=r"^reference_logits has .* logits asks for"):
        categorical_kl(torch.zeros(2, 2), torch.zeros(2))
