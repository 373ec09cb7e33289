"""Losses on whole minibatches: levels of the ratio, bounds, KL terms, what does not count, and what the mean means."""

import math
from dataclasses import replace

import pytest
import reference as oracle
import torch
from environments import Counting, Quitting
from gymnasium.spaces import Box, Discrete
from helpers import Constant, bools, ints, make_batch, make_minibatch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Beta, Categorical, Independent, kl_divergence

from grpolib import (
    GAE,
    K1,
    K2,
    K3,
    AnchorState,
    CISPOLoss,
    ClippedSurrogateLoss,
    EntropyBonus,
    Evaluation,
    ExactKL,
    GroupSampler,
    GroupZScore,
    LeaveOneOut,
    LossOutput,
    MinibatchPlan,
    ProcessSupervision,
    Recipe,
    ReferencePolicy,
    RewardToGo,
    StepInputs,
    TimestepLeaveOneOut,
    Trainer,
    ValueLoss,
    as_policy,
    mlp,
)
from grpolib.estimators import needs_critic
from grpolib.kl_losses import needs_reference, needs_reference_parameters
from grpolib.losses import needs_episodes
from grpolib.metrics import batch_metrics

NAN, INF = math.nan, math.inf
REDUCTIONS = ("episode_mean", "step_mean", "constant")
LEVELS = ("step", "episode_mean", "episode_sum")

STEP_LOSSES = [
    ClippedSurrogateLoss(),
    ClippedSurrogateLoss(0.1, clip_epsilon_high=0.3),
    ClippedSurrogateLoss(dual_clip=1.5),
    CISPOLoss(),
    CISPOLoss(0.2, clip_epsilon=0.1),
    ValueLoss(0.5),
    EntropyBonus(0.1),
    K1(0.3),
    K2(0.3),
    K3(0.3),
    K1(0.3, gradient="reverse_kl"),
    K3(0.3, gradient="reverse_kl"),
    ExactKL(0.3),
]
EPISODE_LOSSES = [
    ClippedSurrogateLoss(ratio_level="episode_mean"),
    ClippedSurrogateLoss(ratio_level="episode_sum"),
    ClippedSurrogateLoss(0.1, clip_epsilon_high=0.3, dual_clip=1.5, ratio_level="episode_mean"),
    K1(0.3, gradient="reverse_kl", ratio_level="episode_mean"),
    K3(0.3, gradient="reverse_kl", ratio_level="episode_sum"),
]
ALL_LOSSES = STEP_LOSSES + EPISODE_LOSSES


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


class Scores:
    """Numbers of a network for the rows of a batch: logits of three actions and values, with a gradient."""

    def __init__(self, num_rows, seed=0):
        rng = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(num_rows, 3, generator=rng, dtype=torch.float64).requires_grad_()
        self.values = torch.randn(num_rows, generator=rng, dtype=torch.float64).requires_grad_()

    def of(self, rows, actions):
        distribution = Categorical(logits=self.logits[rows], validate_args=False)
        log_probs = distribution.log_prob(actions)
        return Evaluation(log_probs, distribution.entropy(), values=self.values[rows], distribution=distribution)


def annotated_batch(lengths, seed=0, group_ids=None, **fields):
    """A batch in float64 that has everything the losses read; its observation is the row's number."""
    rng = torch.Generator().manual_seed(seed + 1)
    steps = sum(lengths)
    rows = torch.arange(steps)
    actions = torch.randint(3, (steps,), generator=rng)

    def log_softmax():
        return torch.randn(steps, 3, generator=rng, dtype=torch.float64).log_softmax(1)

    old, reference = log_softmax(), log_softmax()
    return make_batch(
        lengths,
        group_ids=group_ids,
        rewards=torch.zeros(steps, dtype=torch.float64),
        inputs=StepInputs(rows.double().unsqueeze(1), actions),
        log_probs=old[rows, actions],
        reference_log_probs=reference[rows, actions],
        reference_parameters=reference,
        **fields,
    )


def advantages_and_returns(batch, seed=0):
    rng = torch.Generator().manual_seed(seed + 2)
    return (torch.randn(batch.num_steps, generator=rng, dtype=torch.float64) for _ in range(2))


def parts_of(batch, reduction, *, seed=0, advantages=None, returns=None, **plan):
    drawn = advantages_and_returns(batch, seed)
    advantages, returns = (
        other if given is None else given for given, other in zip((advantages, returns), drawn, strict=True)
    )
    plan = MinibatchPlan(**{"epochs": 1, "size": None, "by": "episode", **plan})
    rng = torch.Generator().manual_seed(seed)
    return list(batch.minibatches(advantages, reduction, plan, rng, returns=returns, max_length=11))


def loss_of(loss, scores, part):
    rows = part.inputs.observations[:, 0].long()
    return loss(scores.of(rows, part.inputs.actions), part).loss


def gradients(loss, scores, *parts):
    """The sum over the parts, and its gradient by logits and values."""
    total = sum(loss_of(loss, scores, part) for part in parts)
    found = torch.autograd.grad(total, (scores.logits, scores.values), allow_unused=True)
    zeros = scores.logits, scores.values
    return total.detach(), *(torch.zeros_like(z) if g is None else g for g, z in zip(found, zeros, strict=True))


def metrics_of(loss, scores, part):
    rows = part.inputs.observations[:, 0].long()
    return loss(scores.of(rows, part.inputs.actions), part).metrics


def assert_close(first, second, tolerance=1e-9):
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


ragged = st.lists(st.integers(1, 5), min_size=1, max_size=5)


# The level of the ratio.


@pytest.mark.parametrize(
    ("level", "ratios"),
    [
        # Log-ratios ln 2, ln 8 | ln 1/2: single, the mean ln 4 of the first episode, its sum ln 16.
        ("step", [2.0, 8.0, 0.5]),
        ("episode_mean", [4.0, 4.0, 0.5]),
        ("episode_sum", [16.0, 16.0, 0.5]),
    ],
)
def test_the_loss_takes_the_ratio_at_its_level(level, ratios):
    log_probs = f64([2.0, 8.0, 0.5]).log()
    part = make_minibatch(f64([1.0, -1.0, 1.0]), lengths=ints(2, 1), weights=f64([0.2, 0.3, 0.5]))
    loss = ClippedSurrogateLoss(0.9, clip_epsilon_high=99.0, ratio_level=level)
    output = loss(Evaluation(log_probs, log_probs), part)
    expected = -(0.2 * ratios[0] - 0.3 * ratios[1] + 0.5 * ratios[2])
    assert output.loss.item() == pytest.approx(expected)
    assert output.metrics["ratio_max"].item() == pytest.approx(max(ratios))
    assert output.metrics["ratio_min"].item() == pytest.approx(min(ratios))
    assert output.metrics["ratio_mean"].item() == pytest.approx(sum(ratios) / 3)


@pytest.mark.parametrize(("level", "middle"), [("episode_mean", 2.0), ("episode_sum", 4.0)])
def test_an_episode_s_ratio_is_of_its_counted_rows(level, middle):
    # Counted log-ratios ln 1, ln 4: mean ln 2, sum ln 4. The row between them holds garbage.
    log_probs = torch.tensor([0.0, NAN, math.log(4.0), 0.0], dtype=torch.float64, requires_grad=True)
    part = make_minibatch(
        f64([1.0, 1.0, 1.0, 1.0]),
        old_log_probs=f64([0.0, -INF, 0.0, 0.0]),
        weights=f64([0.25, 0.0, 0.25, 0.5]),
        lengths=ints(3, 1),
    )
    output = ClippedSurrogateLoss(clip_epsilon_high=99.0, ratio_level=level)(Evaluation(log_probs, log_probs), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-(0.5 * middle + 0.5))
    # d/d log-ratio: each of two rows carries half of the episode's 0.5 * ratio for the mean, all of it for the sum.
    share = 0.5 * middle * (0.5 if level == "episode_mean" else 1.0)
    assert log_probs.grad.tolist() == pytest.approx([-share, 0.0, -share, -0.5])
    assert output.metrics["ratio_mean"].item() == pytest.approx((2 * middle + 1) / 3)


@pytest.mark.parametrize("level", ["episode_mean", "episode_sum"])
def test_an_episode_without_a_counted_row_has_no_say(level):
    log_probs = torch.tensor([NAN, NAN, math.log(1.1)], dtype=torch.float64, requires_grad=True)
    part = make_minibatch(f64([1.0] * 3), weights=f64([0.0, 0.0, 1.0]), lengths=ints(2, 1))
    output = ClippedSurrogateLoss(ratio_level=level)(Evaluation(log_probs, log_probs), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-1.1)
    assert log_probs.grad.tolist() == pytest.approx([0.0, 0.0, -1.1])


@given(
    ragged, st.sampled_from(REDUCTIONS), st.sampled_from(["step", "episode_mean", "episode_sum"]), st.integers(0, 99)
)
def test_the_loss_agrees_with_loops_over_counted_rows(lengths, reduction, level, seed):
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(sum(lengths), generator=rng) < 0.7
    batch = annotated_batch(lengths, seed, loss_mask=mask)
    parts = parts_of(batch, reduction, seed=seed)
    if not mask.any():
        assert parts == []
        return
    (part,) = parts
    scores = Scores(batch.num_steps, seed)
    bounds = {"clip_epsilon": 0.2, "clip_epsilon_high": 0.4, "dual_clip": 1.5}
    found = loss_of(ClippedSurrogateLoss(**bounds, ratio_level=level), scores, part)
    rows = part.inputs.observations[:, 0].long()
    new = scores.of(rows, part.inputs.actions).log_probs.tolist()
    old, advantages, weights = (x.tolist() for x in (part.old_log_probs, part.advantages, part.weights))
    total, row = 0.0, 0
    for length in part.lengths.tolist():
        kept = [k for k in range(row, row + length) if weights[k] > 0]
        row += length
        if not kept:
            continue
        ratios = oracle.importance_ratio([new[k] for k in kept], [old[k] for k in kept], [len(kept)], level)
        for ratio, k in zip(ratios, kept, strict=True):
            total -= weights[k] * oracle.clipped_surrogate(ratio, advantages[k], 0.2, 0.4, 1.5)
    assert found.item() == pytest.approx(total, rel=1e-9, abs=1e-12)


# Bounds.


def corners(loss):
    """(1.5, +1), (0.5, +1), (1.5, -1), (0.5, -1): loss, gradient by the log-probability, metrics."""
    ratios = f64([1.5, 0.5, 1.5, 0.5])
    log_probs = ratios.log().requires_grad_()
    output = loss(Evaluation(log_probs, log_probs), make_minibatch(f64([1.0, 1.0, -1.0, -1.0])))
    output.loss.backward()
    return output.loss.item(), log_probs.grad.tolist(), output.metrics


def test_the_four_corners_of_an_uneven_clip():
    # -(1.28 + 0.5 - 1.5 - 0.8) / 4 = 0.13; the gradient is -A rho / 4 where nothing is clipped.
    loss, gradient, metrics = corners(ClippedSurrogateLoss(0.2, clip_epsilon_high=0.28))
    assert loss == pytest.approx(0.13)
    assert gradient == pytest.approx([0.0, -0.125, 0.375, 0.0])
    shares = {name: metrics[f"clip_fraction{name}"].item() for name in ("", "_low", "_high")}
    assert shares == {"": 0.5, "_low": 0.25, "_high": 0.25}


def test_only_the_upper_bound_is_raised():
    # The upper one at 1.6 lets the first corner through, the lower one stays.
    loss, gradient, metrics = corners(ClippedSurrogateLoss(0.2, clip_epsilon_high=0.6))
    assert loss == pytest.approx(-(1.5 + 0.5 - 1.5 - 0.8) / 4)
    assert gradient == pytest.approx([-0.375, -0.125, 0.375, 0.0])
    assert (metrics["clip_fraction_low"].item(), metrics["clip_fraction_high"].item()) == (0.25, 0.0)


def test_a_dual_clip_stops_what_a_bad_action_may_cost():
    # c = 1.25: the third corner's -1.5 becomes -1.25 and its gradient 0; the others stay.
    loss, gradient, _ = corners(ClippedSurrogateLoss(0.2, dual_clip=1.25))
    assert loss == pytest.approx(-(1.2 + 0.5 - 1.25 - 0.8) / 4)
    assert gradient == pytest.approx([0.0, -0.125, 0.0, 0.0])


@pytest.mark.parametrize(
    ("bounds", "weights"),
    [
        ({"clip_epsilon_high": 0.28, "clip_epsilon": 0.2}, [1.28, 0.8, 1.28, 0.8]),
        ({"clip_epsilon_high": 0.28}, [1.28, 0.5, 1.28, 0.5]),
        ({"clip_epsilon_high": 4.0, "clip_epsilon": 0.9}, [1.5, 0.5, 1.5, 0.5]),
    ],
)
def test_cispo_keeps_a_gradient_in_every_corner(bounds, weights):
    # -w A log(pi) / 4 and -w A / 4, with w = clip(ratio) held constant.
    loss, gradient, metrics = corners(CISPOLoss(**bounds))
    signs, ratios = [1.0, 1.0, -1.0, -1.0], [1.5, 0.5, 1.5, 0.5]
    terms = [-w * sign * math.log(ratio) / 4 for w, sign, ratio in zip(weights, signs, ratios, strict=True)]
    assert loss == pytest.approx(sum(terms))
    assert gradient == pytest.approx([-w * sign / 4 for w, sign in zip(weights, signs, strict=True)])
    assert metrics["ratio_max"].item() == pytest.approx(1.5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("advantage", "loss"), [(1.0, -1.2), (0.0, 0.0), (-1.0, 4.8516520e8)])
def test_a_ratio_that_overflows(advantage, loss, level):
    log_probs = torch.tensor([-1.0], requires_grad=True)
    part = make_minibatch([advantage], old_log_probs=[-101.0], lengths=ints(1))
    output = ClippedSurrogateLoss(ratio_level=level)(Evaluation(log_probs, log_probs), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(loss, rel=1e-6)
    assert log_probs.grad.item() == 0.0
    assert all(torch.isfinite(value) for value in output.metrics.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClippedSurrogateLoss(1.0), "clip_epsilon is 1.0"),
        (lambda: ClippedSurrogateLoss(-0.1), "clip_epsilon is -0.1"),
        (lambda: ClippedSurrogateLoss(clip_epsilon_high=-0.1), "clip_epsilon_high is -0.1"),
        (lambda: ClippedSurrogateLoss(dual_clip=1.0), "dual_clip is 1.0"),
        (lambda: ClippedSurrogateLoss(ratio_level="token"), "level is 'token'"),
        (lambda: CISPOLoss(-1.0), "clip_epsilon_high is -1.0"),
        (lambda: CISPOLoss(clip_epsilon=1.0), "clip_epsilon is 1.0"),
        (lambda: EntropyBonus(-0.1), "coefficient must be >= 0"),
        (lambda: EntropyBonus(NAN), "coefficient must be >= 0"),
        (lambda: EntropyBonus(INF), "coefficient must be >= 0 and finite"),
        (lambda: ValueLoss(0.0), r"ValueLoss.* coefficient must be > 0; leave the term"),
        (lambda: K1(0.0), "coefficient must be > 0; leave the term"),
        (lambda: K2(-1.0), "coefficient must be > 0; leave the term"),
        (lambda: K3(NAN), "coefficient must be > 0; leave the term"),
        (lambda: ExactKL(0.0), r"ExactKL.* coefficient must be > 0; leave the term"),
        (lambda: K1(1.0, gradient="reverse"), "gradient"),
        (lambda: K3(1.0, gradient="forward_kl"), "gradient"),
        (lambda: K1(1.0, gradient="reverse_kl", ratio_level="token"), "level"),
        (lambda: K3(1.0, gradient="reverse_kl", ratio_level="token"), "level"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_settings_that_cannot_be_fail_where_they_are_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("asks", "reads"),
    [
        (needs_critic, ValueLoss()),
        (needs_critic, GAE()),
        (needs_reference, K3(0.1)),
        (needs_reference, ExactKL(0.1)),
        (needs_reference_parameters, ExactKL(0.1)),
        (needs_episodes, ClippedSurrogateLoss(ratio_level="episode_mean")),
    ],
)
def test_what_a_piece_reads_is_asked_for_and_not_guessed(asks, reads):
    assert asks(reads) is True
    for other in (EntropyBonus(0.1), LeaveOneOut(), lambda evaluation, minibatch: None):
        assert asks(other) is False


# The critic.


def test_the_value_loss_is_the_weighted_squared_error():
    minibatch = make_minibatch([0.0, 0.0], weights=[0.25, 0.75], returns=torch.tensor([1.0, -2.0]))
    values = torch.tensor([3.0, -1.0], requires_grad=True)
    evaluation = Evaluation(torch.zeros(2), torch.zeros(2), values=values)
    output = ValueLoss(0.5)(evaluation, minibatch)
    output.loss.backward()
    assert output.loss.item() == 0.5 * (0.25 * 4 + 0.75 * 1)
    assert output.metrics["value_loss"].item() == 0.25 * 4 + 0.75 * 1
    assert values.grad.tolist() == [0.25 * 2, 0.75 * 1]


def test_a_value_loss_without_values_or_returns_raises():
    two = torch.zeros(2)
    for values, returns in ((None, two), (two, None), (None, None)):
        with pytest.raises(ValueError, match=r"needs values and returns: give critic=Critic\(module\)"):
            ValueLoss()(Evaluation(two, two, values=values), make_minibatch(two, returns=returns))


# Entropy.


def test_a_schedule_may_end_a_bonus_at_zero():
    assert EntropyBonus(0.0).coefficient == 0


def test_the_entropy_bonus_and_its_gradient():
    entropy = f64([0.5, 1.5]).requires_grad_()
    part = make_minibatch(f64([0.0, 0.0]), weights=f64([0.25, 0.75]))
    output = EntropyBonus(0.1)(Evaluation(f64([0.0, 0.0]), entropy), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-0.1 * (0.25 * 0.5 + 0.75 * 1.5))
    assert entropy.grad.tolist() == pytest.approx([-0.025, -0.075])


def test_the_bonus_pulls_towards_the_uniform_policy():
    # dH/d logit_a = -p_a (log p_a + H); the loss has the other sign, so descending it raises H.
    logits = f64([[math.log(0.8), math.log(0.2)]]).requires_grad_()
    distribution = Categorical(logits=logits)
    evaluation = Evaluation(distribution.log_prob(ints(0)), distribution.entropy())
    EntropyBonus(2.0)(evaluation, make_minibatch(f64([0.0]))).loss.backward()
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    expected = [2.0 * p * (math.log(p) + entropy) for p in (0.8, 0.2)]
    assert logits.grad[0].tolist() == pytest.approx(expected)
    assert expected[0] > 0 > expected[1]


# KL terms in the loss.


def kl_minibatch(log_probs, reference, **fields):
    part = make_minibatch(f64([0.0] * len(log_probs)), reference_log_probs=f64(reference), **fields)
    log_probs = f64(log_probs).requires_grad_()
    return Evaluation(log_probs, log_probs), part


@pytest.mark.parametrize(
    ("loss", "value", "gradient"),
    [
        # log pi = -1, log ref = -2: k1 = 1, k2 = 1/2, k3 = e^-1 = 0.367879 (e^-1 + 1 - 1), its slope 1 - e^-1.
        (K1(0.1), 0.1, 0.1),
        (K2(0.1), 0.05, 0.1),
        (K3(0.1), 0.0367879, 0.0632121),
        # Ratio x k at ratio 1: the ratio's slope adds the value. k1: 1 + 1; k3: 0.632121 + 0.367879.
        (K1(0.1, gradient="reverse_kl"), 0.1, 0.2),
        (K3(0.1, gradient="reverse_kl"), 0.0367879, 0.1),
    ],
)
def test_a_kl_term_moves_the_policy_also_where_every_advantage_is_zero(loss, value, gradient):
    evaluation, part = kl_minibatch([-1.0], [-2.0], old_log_probs=f64([-1.0]))
    output = loss(evaluation, part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(value, rel=1e-5)
    assert evaluation.log_probs.grad.item() == pytest.approx(gradient, rel=1e-5)
    # Logged without the coefficient.
    plain = {K1: 1.0, K2: 0.5, K3: 0.367879}[type(loss)]
    assert output.metrics["kl_reference"].item() == pytest.approx(plain, rel=1e-5)
    surrogate = ClippedSurrogateLoss()(evaluation, part).loss
    assert torch.autograd.grad(surrogate, evaluation.log_probs)[0].item() == 0.0


def test_kl_terms_take_the_mean_of_the_other_losses():
    # k2 = 1/2 and 2 with weights 1/4 and 3/4.
    evaluation, part = kl_minibatch([-1.0, -1.0], [-2.0, -3.0], weights=f64([0.25, 0.75]))
    assert K2(1.0)(evaluation, part).loss.item() == pytest.approx(0.25 * 0.5 + 0.75 * 2.0)
    assert K2(1.0)(evaluation, part).metrics["kl_reference"].item() == pytest.approx(1.25)


@pytest.mark.parametrize("loss", [K1(1.0), K2(1.0), K3(1.0), K1(1.0, gradient="reverse_kl"), ExactKL(1.0)])
def test_a_kl_term_without_a_reference_in_the_minibatch_raises(loss):
    evaluation, part = kl_minibatch([-1.0], [-2.0])
    with pytest.raises(ValueError, match="reference"):
        loss(evaluation, replace(part, reference_log_probs=None))


# The exact KL.


def scored_by(policy, reference, observations, actions):
    """The minibatch of a batch that a reference has annotated, and the policy's evaluation of it."""
    batch = make_batch(
        (len(observations),),
        rewards=torch.zeros(len(observations)),
        inputs=StepInputs(observations, actions),
        log_probs=torch.zeros(len(observations)),
    )
    batch = reference.started_from(policy).annotate(batch, with_parameters=True)
    plan, rng = MinibatchPlan(epochs=1, size=None), torch.Generator().manual_seed(0)
    (part,) = batch.minibatches(torch.zeros(len(observations)), "step_mean", plan, rng)
    return policy.evaluate(part.inputs), part


@pytest.mark.parametrize(
    ("space", "outputs", "actions"),
    [(Discrete(3), 3, torch.tensor([0, 2, 1, 1])), (Box(-1.0, 1.0, (2,)), 4, torch.zeros(4, 2))],
)
def test_the_exact_kl_is_torch_s_in_value_and_gradient(space, outputs, actions):
    observations = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    networks = [mlp(2, 8, outputs, seed=seed) for seed in (1, 2)]
    with torch.no_grad():
        for network in networks:
            network[-1].weight.mul_(100.0)  # far enough apart for a KL that is worth comparing
    policy, other = (as_policy(network, space) for network in networks)
    evaluation, part = scored_by(policy, ReferencePolicy(policy=other), observations, actions)
    output = ExactKL(0.3)(evaluation, part)
    output.loss.backward()
    found = [parameter.grad.clone() for parameter in policy.parameters()]
    policy.zero_grad()
    with torch.no_grad():
        frozen = other.distribution(observations)
    exact = kl_divergence(policy.distribution(observations), frozen).mean()
    (0.3 * exact).backward()
    assert exact.item() > 0.05
    torch.testing.assert_close(output.loss, 0.3 * exact)
    torch.testing.assert_close(output.metrics["kl_reference"], exact)
    for first, second in zip(found, policy.parameters(), strict=True):
        torch.testing.assert_close(first, second.grad, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_the_exact_kl_does_not_look_at_the_action_taken():
    observations = torch.ones(3, 2)
    policy, other = (as_policy(mlp(2, 3, seed=seed), Discrete(3)) for seed in (1, 2))
    terms = []
    for action in range(3):
        evaluation, part = scored_by(policy, ReferencePolicy(policy=other), observations, torch.full((3,), action))
        terms.append(ExactKL(1.0)(evaluation, part).loss.item())
    assert terms[0] == terms[1] == terms[2] > 0


def without_closed_form(distribution):
    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.idle = torch.nn.Parameter(torch.zeros(1))

        def forward(self, observations):
            return distribution(torch.ones(len(observations), 1) + self.idle * 0)

    return as_policy(Fixed(), Box(0.0, 1.0, (1,)))


def test_a_distribution_without_a_closed_form_raises():
    policy = without_closed_form(lambda x: Independent(Beta(x, x), 1))
    with pytest.raises(ValueError, match="KL of Beta has no closed form here: use K3"):
        scored_by(policy, ReferencePolicy(), torch.zeros(2, 1), torch.full((2, 1), 0.5))


def test_a_policy_that_keeps_its_distribution_to_itself_raises():
    evaluation, part = scored_by(as_policy(mlp(1, 2), Discrete(2)), ReferencePolicy(), torch.zeros(2, 1), ints(0, 1))
    with pytest.raises(ValueError, match="needs the policy's and the reference's distribution: use K3"):
        ExactKL(1.0)(replace(evaluation, distribution=None), part)
    with pytest.raises(ValueError, match="needs the policy's and the reference's distribution: use K3"):
        ExactKL(1.0)(evaluation, replace(part, reference_parameters=None))
    silent = as_policy(Constant(0.0, 0.0), Discrete(2))
    evaluate = silent.evaluate
    silent.evaluate = lambda inputs: replace(evaluate(inputs), distribution=None)
    with pytest.raises(ValueError, match="ExactKL needs a policy whose evaluation has its distribution: use K3"):
        ReferencePolicy(policy=silent).annotate(make_batch((1, 1)), with_parameters=True)


# KL in the reward.

LOGITS, REFERENCE = (0.3, -0.2, 0.9), (1.0, 0.0, -1.0)


def penalised(penalty, **fields):
    """A batch of three rows with actions 0, 1, 2 whose sampling policy has LOGITS; the reference has REFERENCE."""
    fields = {"log_probs": torch.tensor(LOGITS).log_softmax(0), "rewards": torch.tensor([1.0, 2.0, 4.0]), **fields}
    inputs = StepInputs(torch.zeros(3, 1), ints(0, 1, 2))
    batch = make_batch((2, 1), inputs=inputs, **fields)
    reference = ReferencePolicy(penalty=penalty, policy=as_policy(Constant(*REFERENCE), Discrete(3)))
    return reference.started_from(as_policy(Constant(*LOGITS), Discrete(3))).annotate(batch)


@pytest.mark.parametrize(("penalty", "estimate"), [(K1, oracle.kl_k1), (K2, oracle.kl_k2), (K3, oracle.kl_k3)])
def test_penalties_are_the_coefficient_times_the_estimate(penalty, estimate):
    batch = penalised(penalty(0.5))
    new, reference = (torch.tensor(x, dtype=torch.float64).log_softmax(0).tolist() for x in (LOGITS, REFERENCE))
    expected = [0.5 * estimate(p, q) for p, q in zip(new, reference, strict=True)]
    assert batch.penalties.tolist() == pytest.approx(expected, rel=1e-5)
    assert not batch.penalties.requires_grad
    assert not batch.reference_log_probs.requires_grad
    # Logs read the rewards as they came.
    assert batch.rewards.tolist() == [1.0, 2.0, 4.0]
    assert batch.episode_returns.tolist() == [3.0, 4.0]
    assert batch_metrics(batch)["return_mean"] == 3.5


def test_no_penalty_is_filled_where_the_kl_is_in_the_loss():
    assert penalised(None).penalties is None
    assert penalised(None).reference_log_probs is not None


def test_a_step_that_does_not_count_has_no_penalty():
    mask, garbage = bools(True, False, True), torch.tensor([-1.0, -INF, -1.0])
    batch = penalised(K3(0.5), loss_mask=mask, log_probs=garbage)
    assert batch.penalties[1].item() == 0.0
    assert batch.penalties[[0, 2]].gt(0).all()
    unscored = penalised(K1(0.5), scored=bools(False, True), log_probs=torch.tensor([NAN, -INF, -1.0]))
    assert unscored.penalties[:2].tolist() == [0.0, 0.0]
    assert unscored.penalties[2].item() != 0.0


ESTIMATORS = [
    GroupZScore(),
    GroupZScore(scale="batch"),
    GroupZScore(scale="none"),
    LeaveOneOut(),
    ProcessSupervision(),
    TimestepLeaveOneOut(),
    TimestepLeaveOneOut(normalize=False),
    RewardToGo("group"),
    RewardToGo("batch"),
    RewardToGo("timestep"),
    AnchorState(),
    GAE(),
    GAE(normalize=False),
]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_reads_rewards_minus_penalties(estimator):
    rng = torch.Generator().manual_seed(0)
    rewards, penalties, values = (torch.randn(12, generator=rng, dtype=torch.float64) for _ in range(3))

    def batch_of(rewards, **fields):
        critic = {"values": values, "final_values": values[:6]}
        return make_batch((2, 1, 3, 3, 2, 1), (0, 0, 0, 1, 1, 1), rewards, **critic, **fields)

    plain, with_kl = batch_of(rewards), batch_of(rewards, penalties=penalties)
    paid = batch_of(rewards - penalties)
    torch.testing.assert_close(estimator(with_kl), estimator(paid))
    assert not torch.allclose(estimator(with_kl), estimator(plain), atol=1e-3)


def test_penalties_and_a_reward_mask_do_not_go_together():
    batch = make_batch((2, 2), penalties=torch.zeros(4), reward_mask=bools(True, True, False, True))
    with pytest.raises(ValueError, match="penalties fall on every step and reward_mask names the steps"):
        ProcessSupervision()(batch)


def test_a_penalty_counts_as_a_kl_term_in_a_run():
    rewarded, logged = {}, {}
    for coefficient in (None, 5.0):
        reference = None if coefficient is None else ReferencePolicy(penalty=K1(coefficient))
        trainer = Trainer(
            mlp(2, 8, 2),
            GroupSampler(Quitting, 4),
            advantages=GroupZScore(),
            reference=reference,
            groups_per_step=4,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        )
        rows = [trainer.step() for _ in range(3)]
        logged[coefficient] = [row["return_mean"] for row in rows]
        rewarded[coefficient] = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    # The first iteration starts at the reference: no penalty yet, and the same episodes.
    assert logged[None][0] == logged[5.0][0]
    assert not all(torch.equal(a, b) for a, b in zip(rewarded[None], rewarded[5.0], strict=True))


# What does not count.


def masked(lengths, kept, garbage, seed=0):
    """A batch whose rows outside `kept` are masked and hold garbage, and the batch that never had them."""
    whole = annotated_batch(lengths, seed)
    mask = torch.tensor(kept)
    fields = {}
    for name in ("log_probs", "reference_log_probs"):
        fields[name] = torch.where(mask, getattr(whole, name), garbage)
    fields["reference_parameters"] = torch.where(mask[:, None], whole.reference_parameters, garbage)
    rows = mask.nonzero().squeeze(1)
    left = [int(mask[whole.episode_ids == episode].sum()) for episode in range(len(lengths))]
    removed = make_batch(
        [n for n in left if n],
        rewards=whole.rewards[rows],
        inputs=whole.inputs.select_steps(rows),
        log_probs=whole.log_probs[rows],
        reference_log_probs=whole.reference_log_probs[rows],
        reference_parameters=whole.reference_parameters[rows],
    )
    return replace(whole, loss_mask=mask, **fields), removed, rows


@pytest.mark.parametrize("loss", ALL_LOSSES)
@pytest.mark.parametrize(
    ("reduction", "kept"),
    [
        ("episode_mean", [True, False, True, False, False, True, True, False]),
        ("step_mean", [True, False, True, False, False, True, True, False]),
        # For the constant every episode stays in N, so that each must keep a row to be comparable.
        ("constant", [True, False, True, False, True, True, True, False]),
    ],
)
def test_a_masked_row_is_a_row_that_was_removed(loss, reduction, kept):
    for garbage in (0.0, NAN, INF, -INF):
        with_rows, removed, rows = masked((3, 2, 3), kept, garbage)
        advantages, returns = advantages_and_returns(with_rows)
        mask = with_rows.loss_mask
        filled = [torch.where(mask, column, garbage) for column in (advantages, returns)]
        (part,) = parts_of(with_rows, reduction, advantages=filled[0], returns=filled[1])
        (expected,) = parts_of(removed, reduction, advantages=advantages[rows], returns=returns[rows])
        assert len(part.weights) == 8
        scores = Scores(8)
        found = gradients(loss, scores, part)
        assert_close(found, gradients(loss, scores, expected))
        assert found[1][~mask].eq(0).all()
        assert found[2][~mask].eq(0).all()
        logged = metrics_of(loss, scores, part)
        for name, value in metrics_of(loss, scores, expected).items():
            torch.testing.assert_close(logged[name], value, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("garbage", [NAN, INF])
@pytest.mark.parametrize("loss", [loss for loss in ALL_LOSSES if not isinstance(loss, ExactKL)])
def test_a_network_s_garbage_in_a_row_that_does_not_count_has_no_effect(loss, garbage):
    part = make_minibatch(
        f64([1.0, 1.0, -1.0]),
        old_log_probs=f64([-1.0, -1.0, -1.0]),
        reference_log_probs=f64([-2.0, -2.0, -0.5]),
        returns=f64([1.0, 2.0, 3.0]),
        weights=f64([0.5, 0.0, 0.5]),
        lengths=ints(2, 1),
    )
    leaves = [f64([-1.1, garbage, -0.7]).requires_grad_() for _ in range(3)]
    output = loss(Evaluation(leaves[0], leaves[1], values=leaves[2]), part)
    assert torch.isfinite(output.loss)
    for gradient in torch.autograd.grad(output.loss, leaves, allow_unused=True):
        if gradient is not None:
            assert gradient.isfinite().all()
            assert gradient[1].item() == 0.0


@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_a_minibatch_in_which_nothing_counts_has_loss_zero(loss):
    (part,) = parts_of(annotated_batch((2, 1)), "step_mean")
    nothing = replace(part, weights=torch.zeros_like(part.weights))
    scores = Scores(3)
    total, *found = gradients(loss, scores, nothing)
    assert total.item() == 0.0
    assert all(gradient.eq(0).all() for gradient in found)


@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_an_unscored_episode_leaves_the_loss(loss):
    whole = annotated_batch((2, 3, 1), scored=bools(True, False, True))
    rows = ints(0, 1, 5)
    without = make_batch(
        (2, 1),
        rewards=whole.rewards[rows],
        inputs=whole.inputs.select_steps(rows),
        **{name: getattr(whole, name)[rows] for name in ("log_probs", "reference_log_probs", "reference_parameters")},
    )
    advantages, returns = advantages_and_returns(whole)
    (part,) = parts_of(whole, "episode_mean", advantages=advantages, returns=returns)
    (expected,) = parts_of(without, "episode_mean", advantages=advantages[rows], returns=returns[rows])
    scores = Scores(6)
    assert_close(gradients(loss, scores, part), gradients(loss, scores, expected))


# What the mean means.


@pytest.mark.parametrize("by", ["step", "episode"])
@pytest.mark.parametrize(
    ("reduction", "loss", "gradient"),
    [
        # A = +1 on one step and -1 on three; at most 4 steps an episode.
        ("episode_mean", 0.0, [-1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ("step_mean", 0.5, [-1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("constant", 0.25, [-1 / 8, 1 / 8, 1 / 8, 1 / 8]),
    ],
)
@pytest.mark.parametrize("masks", [False, True])
def test_three_means_are_three_objectives(reduction, loss, gradient, by, masks):
    # With masks, every episode has a masked step more, which changes nothing.
    lengths, mask = ((2, 4), bools(False, True, True, True, False, True)) if masks else ((1, 3), None)
    batch = make_batch(lengths, log_probs=torch.full((sum(lengths),), -1.0), loss_mask=mask)
    counted = range(4) if mask is None else mask.nonzero().squeeze(1).tolist()
    advantages = torch.full((sum(lengths),), 50.0)
    advantages[list(counted)] = torch.tensor([1.0, -1.0, -1.0, -1.0])
    plan, rng = MinibatchPlan(epochs=1, size=None, by=by), torch.Generator().manual_seed(0)
    (part,) = batch.minibatches(advantages, reduction, plan, rng, max_length=4)
    log_probs = part.old_log_probs.clone().requires_grad_()
    output = ClippedSurrogateLoss()(Evaluation(log_probs, log_probs), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(loss, abs=1e-7)
    found = dict(zip(part.inputs.actions.tolist(), log_probs.grad.tolist(), strict=True))
    assert [found[row] for row in counted] == pytest.approx(gradient)
    # Loss 0 with a gradient that is not: normal on the first update.
    assert any(found.values())


def test_a_ratio_per_episode_spreads_its_gradient_over_the_episode():
    batch = make_batch((1, 3), log_probs=torch.full((4,), -1.0))
    plan, rng = MinibatchPlan(epochs=1, size=None, by="episode"), torch.Generator().manual_seed(0)
    (part,) = batch.minibatches(torch.tensor([1.0, -1.0, -1.0, -1.0]), "episode_mean", plan, rng)
    log_probs = part.old_log_probs.clone().requires_grad_()
    output = ClippedSurrogateLoss(ratio_level="episode_mean")(Evaluation(log_probs, log_probs), part)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(0.0, abs=1e-7)
    found = dict(zip(part.inputs.actions.tolist(), log_probs.grad.tolist(), strict=True))
    assert [found[row] for row in range(4)] == pytest.approx([-1 / 2, 1 / 6, 1 / 6, 1 / 6])


@given(
    ragged,
    st.sampled_from(REDUCTIONS),
    st.sampled_from(STEP_LOSSES),
    st.integers(0, 999),
    st.integers(1, 6),
)
def test_any_split_into_steps_adds_up_to_the_whole(lengths, reduction, loss, seed, size):
    rng = torch.Generator().manual_seed(seed)
    batch = annotated_batch(lengths, seed, loss_mask=torch.rand(sum(lengths), generator=rng) < 0.8)
    for part in parts_of(batch, reduction, seed=seed):
        order = torch.randperm(len(part.weights), generator=rng)
        pieces = [
            part.select(rows, inputs=part.inputs.select_steps(rows), weights=part.weights[rows])
            for rows in order.split(size)
        ]
        scores = Scores(batch.num_steps, seed)
        assert_close(gradients(loss, scores, part), gradients(loss, scores, *pieces))


@given(ragged, st.sampled_from(REDUCTIONS), st.sampled_from(ALL_LOSSES), st.integers(0, 999), st.integers(1, 3))
def test_any_split_into_episodes_adds_up_to_the_whole(lengths, reduction, loss, seed, size):
    rng = torch.Generator().manual_seed(seed)
    batch = annotated_batch(lengths, seed, loss_mask=torch.rand(sum(lengths), generator=rng) < 0.8)
    for part in parts_of(batch, reduction, seed=seed):
        starts = [0, *part.lengths.cumsum(0).tolist()]
        pieces = []
        for episodes in torch.randperm(len(part.lengths), generator=rng).split(size):
            rows = torch.cat([torch.arange(starts[k], starts[k + 1]) for k in episodes.tolist()])
            inputs = part.inputs.select_steps(rows)
            pieces.append(part.select(rows, inputs=inputs, weights=part.weights[rows], lengths=part.lengths[episodes]))
        scores = Scores(batch.num_steps, seed)
        assert_close(gradients(loss, scores, part), gradients(loss, scores, *pieces))


@given(ragged, st.sampled_from(REDUCTIONS), st.sampled_from(ALL_LOSSES), st.integers(0, 999))
def test_the_order_of_the_episodes_does_not_matter(lengths, reduction, loss, seed):
    batch = annotated_batch(lengths, seed)
    scores = Scores(batch.num_steps, seed)
    advantages, returns = advantages_and_returns(batch, seed)
    arguments = {"advantages": advantages, "returns": returns}
    parts = [parts_of(batch, reduction, seed=order, **arguments) for order in (1, 2)]
    assert_close(gradients(loss, scores, *parts[0]), gradients(loss, scores, *parts[1]))


@given(ragged, st.sampled_from(STEP_LOSSES), st.integers(0, 999), st.integers(1, 9))
def test_minibatches_by_step_are_the_whole_on_average(lengths, loss, seed, size):
    batch = annotated_batch(lengths, seed)
    scores = Scores(batch.num_steps, seed)
    (whole,) = parts_of(batch, "episode_mean", seed=seed)
    advantages, returns = advantages_and_returns(batch, seed)
    parts = parts_of(batch, "episode_mean", seed=seed, by="step", size=size, advantages=advantages, returns=returns)
    shares = [len(part.weights) / batch.num_steps for part in parts]
    totals = [gradients(loss, scores, part) for part in parts]
    mean = [sum(share * total[k] for share, total in zip(shares, totals, strict=True)) for k in range(3)]
    # Weights are float32.
    assert_close(mean, gradients(loss, scores, whole), tolerance=1e-5)


def test_losses_are_summed():
    trainer = Trainer(
        mlp(2, 8, 2),
        GroupSampler(Counting, 2),
        advantages=LeaveOneOut(),
        loss=[EntropyBonus(0.5), EntropyBonus(0.25), ClippedSurrogateLoss()],
        groups_per_step=1,
        plan=MinibatchPlan(epochs=1, size=None),
    )
    row = trainer.step()
    # All rewards are alike, so the surrogate is 0.
    assert row["loss"] == pytest.approx(-0.75 * row["entropy"])


def test_a_plain_function_is_a_loss():
    def imitate(evaluation, minibatch):
        return LossOutput(-(evaluation.log_probs * minibatch.weights).sum(), {"imitation": torch.tensor(7.0)})

    trainer = Trainer(
        mlp(2, 8, 2), GroupSampler(Counting, 2), advantages=LeaveOneOut(), loss=[imitate], groups_per_step=1
    )
    assert trainer.step()["imitation"] == 7.0


# Pieces that do not fit together.


@pytest.mark.parametrize(
    "loss",
    [
        ClippedSurrogateLoss(ratio_level="episode_mean"),
        ClippedSurrogateLoss(ratio_level="episode_sum"),
    ],
)
def test_a_ratio_per_episode_needs_whole_episodes_from_the_start(loss):
    with pytest.raises(ValueError, match=r"reads whole episodes: set plan=MinibatchPlan\(.*by='episode'\)"):
        Recipe(advantages=GroupZScore(), loss=[loss])
    assert Recipe(advantages=GroupZScore(), loss=[loss], plan=MinibatchPlan(by="episode")).loss == [loss]
    part = make_minibatch(torch.ones(2))
    with pytest.raises(ValueError, match=r"needs whole episodes: set plan=MinibatchPlan\(.*by='episode'\)"):
        loss(Evaluation(torch.zeros(2), torch.zeros(2)), part)


@pytest.mark.parametrize("term", [K1, K3])
def test_a_kl_s_ratio_per_episode_needs_whole_episodes_from_the_start(term):
    term = term(0.1, gradient="reverse_kl", ratio_level="episode_mean")

    def of(**plan):
        surrogate = ClippedSurrogateLoss(ratio_level="episode_mean")
        plan = MinibatchPlan(**plan)
        return Recipe(advantages=GroupZScore(), loss=[surrogate, term], reference=ReferencePolicy(), plan=plan)

    assert of(by="episode").plan.by == "episode"
    with pytest.raises(ValueError, match="reads whole episodes"):
        of(by="step")
    # Also where no surrogate asks for them.
    with pytest.raises(ValueError, match="reads whole episodes"):
        Recipe(advantages=GroupZScore(), loss=[term], reference=ReferencePolicy())


@pytest.mark.parametrize("surrogate", [ClippedSurrogateLoss(), CISPOLoss()])
def test_a_kl_s_ratio_is_at_the_surrogate_s_level(surrogate):
    term = K3(0.1, gradient="reverse_kl", ratio_level="episode_mean")
    plan = MinibatchPlan(by="episode")
    with pytest.raises(ValueError, match="ratio of another level"):
        Recipe(advantages=GroupZScore(), loss=[surrogate, term], reference=ReferencePolicy(), plan=plan)
    level = replace(term, ratio_level="step")
    Recipe(advantages=GroupZScore(), loss=[surrogate, level], reference=ReferencePolicy(), plan=plan)


@pytest.mark.parametrize("term", [K1(0.1), K2(0.1), K3(0.1), ExactKL(0.1)])
def test_a_kl_term_needs_a_reference_and_a_reference_a_kl_term(term):
    with pytest.raises(ValueError, match=r"KL term without a reference: give reference=ReferencePolicy"):
        Recipe(advantages=GroupZScore(), loss=[ClippedSurrogateLoss(), term])
    with pytest.raises(ValueError, match="a reference was given but no KL term reads it"):
        Recipe(advantages=GroupZScore(), reference=ReferencePolicy())
    Recipe(advantages=GroupZScore(), loss=[ClippedSurrogateLoss(), term], reference=ReferencePolicy())
    if not isinstance(term, ExactKL):
        Recipe(advantages=GroupZScore(), reference=ReferencePolicy(penalty=term))


def test_a_loss_is_a_value():
    assert K3(0.04) == K3(0.04)
    assert ClippedSurrogateLoss() == ClippedSurrogateLoss(0.2)
    assert len({K1(0.1), K1(0.1), K2(0.1), K3(0.1)}) == 3
