import math

import jaxtyping
import pytest
import torch
from helpers import Constant, ints, make_batch, make_minibatch
from hypothesis import given
from hypothesis import strategies as st

from grpolib import (
    K1,
    K2,
    K3,
    ClippedSurrogateLoss,
    Evaluation,
    GroupZScore,
    LossOutput,
    MinibatchPlan,
    PolicyLoss,
    step_weights,
)
from grpolib.kl_losses import needs_reference
from grpolib.losses import counted_mean, counted_rows

NAN, INF = math.nan, math.inf
KL_TERMS = (K1(0.1), K2(0.1), K3(0.1))
LOSSES = (ClippedSurrogateLoss(), *KL_TERMS)


def evaluated(log_probs):
    log_probs = torch.as_tensor(log_probs).clone().requires_grad_()
    return Evaluation(log_probs, torch.zeros_like(log_probs))


def loss_and_gradient(loss, minibatch, log_probs):
    evaluation = evaluated(log_probs)
    output = loss(evaluation, minibatch)
    output.loss.backward()
    return output, evaluation.log_probs.grad


def at_ratio(ratios, advantages, **bounds):
    """The loss (plain mean) and its gradients at the given ratios."""
    log_probs = torch.tensor(ratios).log()
    return loss_and_gradient(ClippedSurrogateLoss(**bounds), make_minibatch(advantages), log_probs)


# The clipped surrogate.


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [(1.5, 1.0, 1.28), (1.25, 1.0, 1.25), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8)],
)
def test_the_smaller_of_the_plain_and_the_clipped_objective(ratio, advantage, objective):
    output, _ = at_ratio([ratio], [advantage], clip_epsilon=0.2, clip_epsilon_high=0.28)
    assert output.loss.item() == pytest.approx(-objective)


def test_the_four_corners():
    # -(1.28 + 0.5 - 1.5 - 0.8) / 4 = 0.13; the first and the last are clipped and have no gradient.
    corners = [1.5, 0.5, 1.5, 0.5], [1.0, 1.0, -1.0, -1.0]
    output, gradient = at_ratio(*corners, clip_epsilon=0.2, clip_epsilon_high=0.28)
    assert output.loss.item() == pytest.approx(0.13)
    assert output.metrics["clip_fraction"].item() == 0.5
    # -w A rho where not clipped.
    torch.testing.assert_close(gradient, torch.tensor([0.0, -0.125, 0.375, 0.0]))


def test_the_upper_bound_is_the_lower_one_unless_given():
    corners = [1.25, 0.75, 1.25, 0.75], [1.0, 1.0, -1.0, -1.0]
    symmetric, _ = at_ratio(*corners, clip_epsilon=0.1)
    spelled_out, _ = at_ratio(*corners, clip_epsilon=0.1, clip_epsilon_high=0.1)
    assert symmetric.loss.item() == spelled_out.loss.item() == pytest.approx(-(1.1 + 0.75 - 1.25 - 0.9) / 4)


def test_the_default_bound_is_the_published_one():
    output, _ = at_ratio([9.0, 0.1], [1.0, -1.0])
    assert output.loss.item() == pytest.approx(-(1.2 - 0.8) / 2)


def test_dual_clip_bounds_what_a_negative_advantage_costs():
    output, gradient = at_ratio([9.0, 2.0, 9.0], [-1.0, -1.0, 1.0], dual_clip=3.0)
    assert output.loss.item() == pytest.approx(-(-3.0 - 2.0 + 1.2) / 3)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 2 / 3, 0.0]))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"clip_epsilon": 1.0}, "clip_epsilon is 1.0"),
        ({"clip_epsilon": -0.1}, "clip_epsilon is -0.1"),
        ({"clip_epsilon": NAN}, "clip_epsilon is nan"),
        ({"clip_epsilon_high": -0.1}, "clip_epsilon_high is -0.1"),
        ({"dual_clip": 1.0}, "dual_clip is 1.0"),
    ],
)
def test_bounds_that_cannot_be_fail_where_they_are_written(bounds, message):
    with pytest.raises(ValueError, match=message):
        ClippedSurrogateLoss(**bounds)


@pytest.mark.parametrize(
    ("advantage", "loss", "gradient"),
    [(1.0, -1.2, 0.0), (0.0, 0.0, 0.0), (-1.0, math.exp(20.0), 0.0)],  # the log-ratio is bounded at 20
)
def test_a_ratio_that_overflows_stays_finite(advantage, loss, gradient):
    minibatch = make_minibatch([advantage], old_log_probs=[-101.0])
    output, found = loss_and_gradient(ClippedSurrogateLoss(), minibatch, [-1.0])
    assert output.loss.item() == pytest.approx(loss, rel=1e-5)
    assert found.tolist() == [gradient]
    assert all(bool(value.isfinite()) for value in output.metrics.values())


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.integers(0, 100))
def test_at_ratio_one_the_gradient_is_the_policy_gradient(advantages, seed):
    # d/d log pi of -w rho A at rho = 1 is -w A.
    rng = torch.Generator().manual_seed(seed)
    weights = torch.rand(len(advantages), generator=rng)
    log_probs = -torch.rand(len(advantages), generator=rng)
    minibatch = make_minibatch(torch.tensor(advantages), old_log_probs=log_probs, weights=weights)
    output, gradient = loss_and_gradient(ClippedSurrogateLoss(), minibatch, log_probs)
    torch.testing.assert_close(gradient, -weights * torch.tensor(advantages))
    torch.testing.assert_close(output.loss.detach(), -(weights * torch.tensor(advantages)).sum())


def test_descending_the_loss_makes_good_actions_likelier():
    module = Constant(0.0, 0.0)
    minibatch = make_minibatch([1.0, -1.0], old_log_probs=torch.full((2,), 0.5).log())
    log_probs = module(torch.zeros(2, 1)).log_softmax(1)[torch.arange(2), ints(0, 1)]
    ClippedSurrogateLoss()(Evaluation(log_probs, torch.zeros(2)), minibatch).loss.backward()
    assert module.output.grad[0] < 0 < module.output.grad[1]


# Three means, and any split of them.


@pytest.mark.parametrize(
    ("reduction", "loss", "gradients"),
    [
        ("episode_mean", 0.0, [-1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ("step_mean", 0.5, [-1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("constant", 0.25, [-1 / 8, 1 / 8, 1 / 8, 1 / 8]),
    ],
)
def test_three_means_are_three_losses(reduction, loss, gradients):
    # Advantage +1 on one step, -1 on three; at most 4 steps.
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0])
    weights = step_weights(ints(1, 3), reduction, max_length=4)
    minibatch = make_minibatch(advantages, weights=weights)
    output, found = loss_and_gradient(ClippedSurrogateLoss(), minibatch, torch.zeros(4))
    assert output.loss.item() == pytest.approx(loss, abs=1e-7)
    torch.testing.assert_close(found, torch.tensor(gradients))


@st.composite
def splits(draw):
    """(lengths, for each of their steps the micro-batch that it falls in)."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    parts = draw(st.lists(st.integers(0, 3), min_size=sum(lengths), max_size=sum(lengths)))
    return lengths, parts


@given(splits(), st.sampled_from(["episode_mean", "step_mean", "constant"]), st.integers(0, 50))
def test_micro_batches_add_up_to_the_whole(case, reduction, seed):
    lengths, parts = case
    rng = torch.Generator().manual_seed(seed)
    size = sum(lengths)
    log_probs, old, reference, advantages = torch.randn(4, size, generator=rng, dtype=torch.float64)
    weights = step_weights(ints(*lengths), reduction, max_length=5).double()
    whole = make_minibatch(advantages, old_log_probs=old, weights=weights, reference_log_probs=reference)
    losses = (ClippedSurrogateLoss(), K3(0.3))

    def accumulated(pieces):
        leaf = log_probs.clone().requires_grad_()
        total = 0.0
        for rows in pieces:
            piece = whole.select(rows, inputs=whole.inputs.select_steps(rows), weights=weights[rows])
            evaluation = Evaluation(leaf[rows], torch.zeros(len(rows)))
            loss = sum(one(evaluation, piece).loss for one in losses)
            loss.backward()
            total += loss.item()
        return total, leaf.grad

    at_once, gradient = accumulated([torch.arange(size)])
    pieces = [(torch.tensor(parts) == part).nonzero().squeeze(1) for part in sorted(set(parts))]
    in_parts, accumulated_gradient = accumulated(pieces)
    assert in_parts == pytest.approx(at_once, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(accumulated_gradient, gradient)


# KL to the reference.


@pytest.mark.parametrize(
    ("term", "loss", "gradient"),
    [
        # log pi = -1, log ref = -2: k1 = 1, k2 = 1/2, k3 = exp(-1) - (-1) - 1; gradients 1, 1, 1 - exp(-1).
        (K1(0.1), 0.1, 0.1),
        (K2(0.1), 0.05, 0.1),
        (K3(0.1), 0.0367879, 0.0632121),
    ],
    ids=repr,
)
def test_kl_terms_of_one_step(term, loss, gradient):
    minibatch = make_minibatch([0.0], reference_log_probs=torch.tensor([-2.0]))
    output, found = loss_and_gradient(term, minibatch, [-1.0])
    assert output.loss.item() == pytest.approx(loss, rel=1e-5)
    assert found.item() == pytest.approx(gradient, rel=1e-5)
    assert output.metrics["kl_reference"].item() == pytest.approx(loss / 0.1, rel=1e-5)


def test_a_group_without_signal_still_feels_the_kl_term():
    minibatch = make_minibatch([0.0], old_log_probs=[-1.0], reference_log_probs=torch.tensor([-2.0]))
    evaluation = evaluated([-1.0])
    total = ClippedSurrogateLoss()(evaluation, minibatch).loss + K3(0.1)(evaluation, minibatch).loss
    total.backward()
    assert total.item() == pytest.approx(0.0367879, rel=1e-5)
    assert evaluation.log_probs.grad.item() == pytest.approx(0.0632121, rel=1e-5)


@pytest.mark.parametrize("term", KL_TERMS, ids=repr)
def test_the_kl_term_has_the_weights_of_the_surrogate(term):
    reference = torch.tensor([-1.0, -2.0, -3.0])
    log_probs = torch.tensor([-2.0, -1.0, -1.5])
    weights = torch.tensor([0.5, 0.3, 0.7])
    minibatch = make_minibatch([0.0] * 3, weights=weights, reference_log_probs=reference)
    output, _ = loss_and_gradient(term, minibatch, log_probs)
    expected = term.coefficient * (weights * term.estimate(log_probs, reference)).sum()
    torch.testing.assert_close(output.loss.detach(), expected)


@pytest.mark.parametrize("term", KL_TERMS, ids=repr)
def test_no_gradient_flows_into_the_reference_and_the_old_policy(term):
    reference = torch.tensor([-2.0], requires_grad=True)
    old = torch.tensor([-1.5], requires_grad=True)
    advantages = torch.tensor([1.0], requires_grad=True)
    minibatch = make_minibatch(advantages, old_log_probs=old, weights=[1.0], reference_log_probs=reference)
    evaluation = evaluated([-1.0])
    (term(evaluation, minibatch).loss + ClippedSurrogateLoss()(evaluation, minibatch).loss).backward()
    assert (reference.grad, old.grad, advantages.grad) == (None, None, None)


@pytest.mark.parametrize("kind", [K1, K2, K3])
@pytest.mark.parametrize("coefficient", [0.0, -0.1, NAN])
def test_a_kl_term_of_no_weight_is_to_be_left_out(kind, coefficient):
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(coefficient={coefficient}.*> 0.*leave the term"):
        kind(coefficient)


@pytest.mark.parametrize("term", KL_TERMS, ids=repr)
def test_a_kl_term_without_a_reference(term):
    with pytest.raises(ValueError, match=r"K\d\(coefficient=0\.1.*needs a reference policy.*ReferencePolicy"):
        term(evaluated([-1.0]), make_minibatch([1.0]))


def test_which_losses_need_a_reference():
    assert all(needs_reference(term) for term in KL_TERMS)
    assert not needs_reference(ClippedSurrogateLoss())
    assert not needs_reference(lambda evaluation, minibatch: None)


# Rows of weight 0.


@pytest.mark.parametrize("garbage", [NAN, INF, -INF])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("place", ["log_probs", "old_log_probs", "reference_log_probs", "advantages", "all"])
def test_a_row_of_weight_zero_may_hold_anything(loss, place, garbage):
    columns = {
        "log_probs": torch.tensor([-1.0, -2.0, -1.5]),
        "old_log_probs": torch.tensor([-1.1, -2.0, -1.4]),
        "reference_log_probs": torch.tensor([-1.3, -2.0, -1.0]),
        "advantages": torch.tensor([1.0, 1.0, -2.0]),
    }
    weights = torch.tensor([0.5, 0.0, 0.25])

    def outcome(columns):
        log_probs = columns.pop("log_probs")
        return loss_and_gradient(loss, make_minibatch(**columns, weights=weights), log_probs)

    plain, gradient = outcome(dict(columns))
    for name in columns if place == "all" else [place]:
        columns[name] = columns[name].clone()
        columns[name][1] = garbage
    spoiled, spoiled_gradient = outcome(columns)
    assert plain.loss.item() == spoiled.loss.item() != 0
    assert torch.equal(gradient, spoiled_gradient)
    assert spoiled_gradient[1] == 0
    assert {name: value.item() for name, value in spoiled.metrics.items()} == {
        name: value.item() for name, value in plain.metrics.items()
    }


def test_minus_infinity_in_a_row_of_weight_zero_is_no_part_of_a_sum_or_mean():
    # -1 counts and -inf does not; times a mask it would be NaN.
    log_probs = torch.tensor([-1.0, -INF], requires_grad=True)
    minibatch = make_minibatch([0.0, 0.0], weights=[1.0, 0.0])
    (counted,) = counted_rows(minibatch, log_probs)
    (counted * minibatch.weights).sum().backward()
    assert counted.tolist() == [-1.0, 0.0]
    assert log_probs.grad.tolist() == [1.0, 0.0]
    assert counted_mean(minibatch, log_probs).item() == -1.0


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_metrics_are_those_of_the_counted_rows(loss):
    columns = {"old_log_probs": torch.tensor([-1.0, -1.0]), "reference_log_probs": torch.tensor([-3.0, -3.0])}
    log_probs = torch.tensor([-0.5, -0.5])
    plain = loss(evaluated(log_probs), make_minibatch(torch.ones(2), **columns))
    rows = [0, 0, 0, 1]
    with_holes = make_minibatch(
        torch.ones(4),
        weights=torch.tensor([0.0, 0.0, 0.5, 0.5]),
        **{name: value[rows] for name, value in columns.items()},
    )
    found = loss(evaluated(log_probs[rows]), with_holes)
    assert found.metrics.keys() == plain.metrics.keys() != set()
    for name, value in plain.metrics.items():
        assert found.metrics[name].item() == pytest.approx(value.item()), name


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_minibatch_in_which_nothing_counts_has_loss_zero(loss):
    minibatch = make_minibatch(torch.ones(2), weights=torch.zeros(2), reference_log_probs=torch.zeros(2))
    output, gradient = loss_and_gradient(loss, minibatch, [-1.0, NAN])
    assert output.loss.item() == 0
    assert gradient.tolist() == [0.0, 0.0]
    assert all(bool(value.isfinite()) for value in output.metrics.values())


# Shapes.


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_column_of_log_probabilities_does_not_broadcast(loss):
    minibatch = make_minibatch([1.0, 2.0, 3.0], reference_log_probs=torch.zeros(3))
    with pytest.raises(ValueError, match=r"\[3, 1\]|\(3, 1\)"):
        loss(evaluated(torch.zeros(3, 1)), minibatch)


# What is logged.


def test_ratio_metrics():
    # Ratios 1.5 and 0.75 with A = 1: only the first is clipped. KL(old || new) with d = log new - log old:
    # k1 = -log rho, k3 = rho - log rho - 1. Effective sample size (1.5 + 0.75)^2 / (2 (2.25 + 0.5625)) = 0.9.
    output, _ = at_ratio([1.5, 0.75], [1.0, 1.0])
    metrics = {name: value.item() for name, value in output.metrics.items()}
    assert metrics["clip_fraction"] == metrics["clip_fraction_high"] == 0.5
    assert metrics["clip_fraction_low"] == 0
    assert metrics["ratio_min"] == pytest.approx(0.75)
    assert metrics["ratio_mean"] == pytest.approx(1.125)
    assert metrics["ratio_max"] == pytest.approx(1.5)
    assert metrics["kl_old_k1"] == pytest.approx(-(math.log(1.5) + math.log(0.75)) / 2)
    assert metrics["kl_old_k3"] == pytest.approx(sum(rho - math.log(rho) - 1 for rho in (1.5, 0.75)) / 2)
    assert metrics["effective_sample_size"] == pytest.approx(0.9)


@pytest.mark.parametrize(("ratio", "advantage", "clipped"), [(1.5, 1, 1), (1.5, -1, 0), (0.5, 1, 0), (0.5, -1, 1)])
def test_clipping_counts_where_it_binds(ratio, advantage, clipped):
    output, _ = at_ratio([ratio], [float(advantage)])
    assert output.metrics["clip_fraction"].item() == clipped


def test_clipping_counts_with_the_loss_s_own_bounds():
    output, _ = at_ratio([1.25, 0.85], [1.0, -1.0], clip_epsilon=0.1, clip_epsilon_high=0.28)
    assert output.metrics["clip_fraction"].item() == 0.5
    output, _ = at_ratio([1.25, 0.85], [1.0, -1.0], clip_epsilon=0.2, clip_epsilon_high=0.1)
    assert output.metrics["clip_fraction"].item() == 0.5


def test_metrics_at_the_first_update():
    output, _ = at_ratio([1.0, 1.0], [1.0, -1.0])
    metrics = {name: value.item() for name, value in output.metrics.items()}
    ones = {"ratio_min", "ratio_mean", "ratio_max", "effective_sample_size"}
    assert ones < metrics.keys()
    assert {name: float(name in ones) for name in metrics} == metrics


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_metrics_hold_no_graph(loss):
    minibatch = make_minibatch([1.0], reference_log_probs=torch.zeros(1))
    output, _ = loss_and_gradient(loss, minibatch, [-1.0])
    assert isinstance(output, LossOutput)
    assert output.loss.shape == ()
    assert output.metrics
    assert all(value.shape == () and not value.requires_grad for value in output.metrics.values())


# As pieces.


def test_a_plain_function_is_a_loss():
    def entropy_bonus(evaluation, minibatch):
        return LossOutput(-(evaluation.entropy * minibatch.weights).sum())

    kept: PolicyLoss = entropy_bonus
    evaluation = Evaluation(torch.zeros(2), torch.tensor([1.0, 3.0]))
    assert kept(evaluation, make_minibatch([0.0, 0.0])).loss.item() == -2.0
    assert kept(evaluation, make_minibatch([0.0, 0.0])).metrics == {}


def test_from_a_batch_to_a_loss():
    # Two one-step episodes with returns 1 and 3: z-scores -1 and 1 (epsilon 0); on policy the loss is 0, and
    # the gradient pulls the second action up.
    batch = make_batch((1, 1), rewards=torch.tensor([1.0, 3.0]))
    plan = MinibatchPlan(epochs=1, size=None)
    advantages = GroupZScore(epsilon=0.0)(batch)
    (minibatch,) = batch.minibatches(advantages, "episode_mean", plan, torch.Generator().manual_seed(0))
    output, gradient = loss_and_gradient(ClippedSurrogateLoss(), minibatch, minibatch.old_log_probs)
    assert output.loss.item() == pytest.approx(0.0)
    of_action = dict(zip(minibatch.inputs.actions.tolist(), gradient.tolist(), strict=True))
    assert of_action == {0: pytest.approx(0.5), 1: pytest.approx(-0.5)}


def test_a_column_of_entropies_does_not_broadcast():
    minibatch = make_minibatch([1.0, -1.0])
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=r"shape \(2, 1\)|float32\[2,1\]|f32\[2,1\]"):
        counted_mean(minibatch, torch.ones(2, 1))
