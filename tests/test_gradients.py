"""Gradients: finite differences of every loss, and exact expectations on policies small enough to enumerate."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from helpers import ints, make_batch, make_minibatch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.distributions import Categorical, Independent, Normal

from grpolib import (
    GAE,
    K1,
    K2,
    K3,
    CISPOLoss,
    ClippedSurrogateLoss,
    EntropyBonus,
    Evaluation,
    ExactKL,
    GroupZScore,
    LeaveOneOut,
    TimestepLeaveOneOut,
    ValueLoss,
)
from grpolib.policies.distributions import parameters_of

LEVELS = ("step", "episode_mean", "episode_sum")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


# Finite differences. Ratios inside and outside the bounds, advantages of both signs, weights of all sizes; no ratio is
# so near a bound that a difference crosses it.

RATIOS = f64([1.5, 0.5, 1.1, 0.9, 2.5, 0.2])
OLD = f64([-1.0, -0.5, -2.0, -0.7, -1.5, -0.9])


def minibatch(**fields):
    values = {
        "old_log_probs": OLD,
        "reference_log_probs": f64([-1.3, -0.4, -1.1, -2.0, -0.6, -1.9]),
        "weights": f64([0.1, 0.25, 0.3, 0.05, 0.2, 0.1]),
        "returns": f64([1.0, -2.0, 0.5, 3.0, 0.0, -1.0]),
        "lengths": ints(3, 1, 2),
    }
    return make_minibatch(f64([1.0, -2.0, 0.5, -0.3, -1.0, 2.0]), **{**values, **fields})


@pytest.mark.parametrize(
    "loss",
    [
        *(ClippedSurrogateLoss(ratio_level=level) for level in LEVELS),
        *(ClippedSurrogateLoss(0.3, clip_epsilon_high=0.7, dual_clip=2.0, ratio_level=level) for level in LEVELS),
        K1(0.3),
        K2(0.3),
        K3(0.3),
        *(term(0.3, gradient="reverse_kl", ratio_level=level) for term in (K1, K3) for level in LEVELS),
    ],
)
def test_losses_of_log_probabilities(loss):
    part = minibatch()

    def of(log_probs):
        return loss(Evaluation(log_probs, log_probs), part).loss

    log_probs = (OLD + RATIOS.log()).requires_grad_()
    assert gradcheck(of, (log_probs,))
    assert torch.autograd.grad(of(log_probs), log_probs)[0].abs().max() > 0.01


@pytest.mark.parametrize(
    ("loss", "low", "high"), [(CISPOLoss(), 0.0, 5.0), (CISPOLoss(0.3), 0.0, 1.3), (CISPOLoss(0.3, 0.4), 0.6, 1.3)]
)
def test_cispo_is_the_policy_gradient_under_its_weights_as_constants(loss, low, high):
    part = minibatch()
    log_probs = (OLD + RATIOS.log()).requires_grad_()
    loss(Evaluation(log_probs, log_probs), part).loss.backward()
    expected = -RATIOS.clamp(low, high) * part.advantages * part.weights
    torch.testing.assert_close(log_probs.grad, expected)


def test_the_value_loss():
    part = minibatch()
    values = f64([0.5, 1.0, -1.0, 2.0, 0.1, 0.0]).requires_grad_()
    assert gradcheck(lambda values: ValueLoss(0.7)(Evaluation(OLD, OLD, values=values), part).loss, (values,))


def logits(rows=6, actions=3, seed=0):
    return torch.randn(rows, actions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_entropy_bonus():
    part = minibatch()

    def of(logits):
        return EntropyBonus(0.7)(Evaluation(OLD, Categorical(logits=logits).entropy()), part).loss

    assert gradcheck(of, (logits().requires_grad_(),))


def test_the_exact_kl_of_categoricals():
    part = minibatch(reference_parameters=logits(seed=1).log_softmax(1))

    def of(logits):
        return ExactKL(0.7)(Evaluation(OLD, OLD, distribution=Categorical(logits=logits)), part).loss

    assert gradcheck(of, (logits().requires_grad_(),))


def test_the_exact_kl_of_gaussians():
    part = minibatch(reference_parameters=parameters_of(Independent(Normal(logits(seed=2), logits(seed=3).exp()), 1)))

    def of(mean, log_std):
        distribution = Independent(Normal(mean, log_std.exp()), 1)
        return ExactKL(0.7)(Evaluation(OLD, OLD, distribution=distribution), part).loss

    assert gradcheck(of, (logits(seed=4).requires_grad_(), logits(seed=5).requires_grad_()))


def test_a_sum_of_losses_through_a_policy():
    # One softmax over three actions in each of six states, and a value beside it: everything a policy is trained by.
    losses = [ClippedSurrogateLoss(), ValueLoss(0.5), EntropyBonus(0.1), K3(0.2, gradient="reverse_kl"), ExactKL(0.1)]
    actions = ints(0, 2, 1, 1, 0, 2)
    parameters = logits(seed=1).log_softmax(1)
    reference = parameters.gather(1, actions[:, None]).squeeze(1)
    start = logits(seed=6)
    old = start.log_softmax(1).gather(1, actions[:, None]).squeeze(1) - RATIOS.log()
    part = minibatch(reference_parameters=parameters, reference_log_probs=reference, old_log_probs=old)

    def of(logits, values):
        distribution = Categorical(logits=logits)
        log_probs = distribution.log_prob(actions)
        evaluation = Evaluation(log_probs, distribution.entropy(), values=values, distribution=distribution)
        return sum(loss(evaluation, part).loss for loss in losses)

    assert gradcheck(of, (start.requires_grad_(), f64([0.3] * 6).requires_grad_()))


# KL terms in exact expectation: a minibatch that holds every action, weighted by its probability under the sampler.


@st.composite
def policies(draw):
    """Logits of the policy, of the one that sampled, and of the reference."""
    actions = draw(st.integers(2, 5))
    row = st.lists(st.floats(-2.0, 2.0), min_size=actions, max_size=actions)
    return tuple(f64(draw(row)) for _ in range(3))


def expected_gradient(loss, logits, sampler, reference):
    """(value, gradient by the logits) of the loss, averaged over the actions that the sampler draws."""
    logits = logits.clone().requires_grad_()
    log_probs, old = logits.log_softmax(0), sampler.log_softmax(0)
    part = make_minibatch(
        torch.zeros_like(logits).detach(),
        old_log_probs=old,
        reference_log_probs=reference.log_softmax(0),
        weights=old.exp(),
    )
    output = loss(Evaluation(log_probs, log_probs), part)
    return output.loss.item(), torch.autograd.grad(output.loss, logits)[0]


def divergence(logits, reference, *, reverse=True):
    """(value, gradient) of KL(pi || ref), or of KL(ref || pi)."""
    logits = logits.clone().requires_grad_()
    p, q = logits.log_softmax(0), reference.log_softmax(0)
    first, second = (p, q) if reverse else (q, p)
    value = (first.exp() * (first - second)).sum()
    return value.item(), torch.autograd.grad(value, logits)[0]


def assert_close(first, second):
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-10)


@given(policies())
def test_plain_k1_has_the_reverse_kl_s_value_and_no_gradient(case):
    policy, _, reference = case
    value, gradient = expected_gradient(K1(1.0), policy, policy, reference)
    assert value == pytest.approx(divergence(policy, reference)[0], abs=1e-10)
    assert_close(gradient, torch.zeros_like(policy))


@given(policies())
def test_plain_k2_has_the_reverse_kl_s_gradient(case):
    policy, _, reference = case
    _, gradient = expected_gradient(K2(1.0), policy, policy, reference)
    assert_close(gradient, divergence(policy, reference)[1])


@given(policies())
def test_plain_k3_has_the_reverse_kl_s_value_and_the_forward_kl_s_gradient(case):
    policy, _, reference = case
    value, gradient = expected_gradient(K3(1.0), policy, policy, reference)
    assert value == pytest.approx(divergence(policy, reference)[0], abs=1e-10)
    assert_close(gradient, divergence(policy, reference, reverse=False)[1])


@given(policies(), st.sampled_from([K1, K3]))
def test_ratio_times_k_has_the_reverse_kl_s_value_and_gradient_whoever_sampled(case, term):
    policy, sampler, reference = case
    for old in (policy, sampler):
        value, gradient = expected_gradient(term(1.0, gradient="reverse_kl"), policy, old, reference)
        expected = divergence(policy, reference)
        assert value == pytest.approx(expected[0], abs=1e-9)
        assert_close(gradient, expected[1])


def test_the_three_gradients_are_three_directions():
    # pi = (0.8, 0.2), ref = (0.5, 0.5). Reverse: p0 p1 (log-ratio difference) = 0.16 ln 4; forward: 0.8 - 0.5.
    policy, reference = f64([0.8, 0.2]).log(), f64([0.5, 0.5]).log()
    first = {
        "nothing": expected_gradient(K1(1.0), policy, policy, reference)[1],
        "reverse": expected_gradient(K3(1.0, gradient="reverse_kl"), policy, policy, reference)[1],
        "forward": expected_gradient(K3(1.0), policy, policy, reference)[1],
    }
    assert_close(first["nothing"], f64([0.0, 0.0]))
    assert_close(first["reverse"], f64([0.16 * math.log(4), -0.16 * math.log(4)]))
    assert_close(first["forward"], f64([0.3, -0.3]))


@pytest.mark.parametrize("term", [K1, K3])
def test_the_episode_s_ratio_times_k_is_the_reverse_kl_of_the_episode(term):
    # Two independent steps of one state: KL of the pair = 2 KL of one. Every pair of actions, weighted by its
    # probability under a sampler that is not the policy.
    policy, sampler, reference = f64([0.5, -0.3, 0.1]), f64([0.0, 0.4, -0.6]), f64([-1.0, 1.0, 0.2])
    pairs = torch.tensor(list(itertools.product(range(3), repeat=2)))
    logits = policy.clone().requires_grad_()
    log_probs, old = logits.log_softmax(0)[pairs].flatten(), sampler.log_softmax(0)[pairs].flatten()
    part = make_minibatch(
        torch.zeros(18, dtype=torch.float64),
        old_log_probs=old,
        reference_log_probs=reference.log_softmax(0)[pairs].flatten(),
        weights=old.view(9, 2).sum(1).exp().repeat_interleave(2),
        lengths=ints(*[2] * 9),
    )
    term = term(1.0, gradient="reverse_kl", ratio_level="episode_sum")
    loss = term(Evaluation(log_probs, log_probs), part).loss
    value, gradient = divergence(policy, reference)
    assert loss.item() == pytest.approx(2 * value)
    assert_close(torch.autograd.grad(loss, logits)[0], 2 * gradient)


# Baselines in exact expectation: a small world whose groups can all be enumerated.
#
# Two states and two actions, at most three steps. The policy has its own logits in each state. Action 1 in state 1 ends
# the episode, so that lengths differ; otherwise action 0 leads to states 0 and 1 with probabilities 0.7 and 0.3, and
# action 1 the other way round. Members of a group share their start, state 0 or 1 with probability 0.4 and 0.6.

LOGITS = f64([[0.2, -0.5], [-0.3, 0.6]])
STARTS = {0: 0.4, 1: 0.6}


def reward(state, action, time):
    return {(0, 0): 1.0, (0, 1): -0.5, (1, 0): 0.25, (1, 1): 2.0}[state, action] * (1 + 0.5 * time)


def trajectories(start, horizon):
    """[(states, actions, rewards, probability of the transitions)] of every episode from `start`."""
    found, open_ends = [], [((start,), (), (), 1.0)]
    while open_ends:
        states, actions, rewards, probability = open_ends.pop()
        for action in (0, 1):
            state, time = states[-1], len(actions)
            taken = (*actions, action)
            earned = (*rewards, reward(state, action, time))
            if (state, action) == (1, 1) or time + 1 == horizon:
                found.append((states, taken, earned, probability))
                continue
            for after in (0, 1):
                likely = 0.7 if after == action else 0.3
                open_ends.append(((*states, after), taken, earned, probability * likely))
    return found


def log_probability(logits, states, actions):
    return sum(logits.log_softmax(1)[state, action] for state, action in zip(states, actions, strict=True))


def expected_return(logits, horizon):
    return sum(
        start * likely * log_probability(logits, states, actions).exp() * sum(rewards)
        for state, start in STARTS.items()
        for states, actions, rewards, likely in trajectories(state, horizon)
    )


def true_gradient(horizon):
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(expected_return(logits, horizon), logits)[0]


def estimated_gradient(estimator, group_size, horizon, values=None):
    """E[1/G sum over members and steps of grad log pi A], over every group that can be drawn."""
    members, probabilities = [], []
    for state, start in STARTS.items():
        episodes = [
            (states, actions, rewards, likely * float(log_probability(LOGITS, states, actions).exp()))
            for states, actions, rewards, likely in trajectories(state, horizon)
        ]
        assert sum(episode[3] for episode in episodes) == pytest.approx(1.0)
        for group in itertools.product(episodes, repeat=group_size):
            members += group
            probabilities.append(start * math.prod(episode[3] for episode in group))
    assert sum(probabilities) == pytest.approx(1.0)
    states = torch.tensor([state for member in members for state in member[0]])
    actions = torch.tensor([action for member in members for action in member[1]])
    lengths = [len(member[1]) for member in members]
    batch = make_batch(
        lengths,
        group_ids=[group for group in range(len(probabilities)) for _ in range(group_size)],
        rewards=f64([r for member in members for r in member[2]]),
        log_probs=LOGITS.log_softmax(1)[states, actions],
    )
    if values is not None:
        batch = replace(batch, values=values[states], final_values=torch.zeros(len(lengths), dtype=torch.float64))
    weights = f64(probabilities)[batch.group_ids][batch.episode_ids] / group_size
    logits = LOGITS.clone().requires_grad_()
    # The loss of one minibatch at ratio 1, whose weights are the probabilities: what the library differentiates.
    part = make_minibatch(estimator(batch), old_log_probs=batch.log_probs, weights=weights)
    log_probs = logits.log_softmax(1)[states, actions]
    loss = ClippedSurrogateLoss()(Evaluation(log_probs, log_probs), part).loss
    return -torch.autograd.grad(loss, logits)[0]


SIZES = [(2, 3), (3, 2)]
"""Members of a group and steps of an episode, so that all groups can be enumerated."""


def test_the_true_gradient_agrees_with_finite_differences():
    assert gradcheck(lambda logits: expected_return(logits, 3), (LOGITS.clone().requires_grad_(),))
    assert true_gradient(3).abs().max() > 0.1
    assert len({len(episode[1]) for episode in trajectories(1, 3)}) == 3


@pytest.mark.parametrize(("group_size", "horizon"), SIZES)
def test_leave_one_out_is_unbiased(group_size, horizon):
    assert_close(estimated_gradient(LeaveOneOut(), group_size, horizon), true_gradient(horizon))


@pytest.mark.parametrize(("group_size", "horizon"), SIZES)
def test_timestep_leave_one_out_is_unbiased(group_size, horizon):
    estimator = TimestepLeaveOneOut(discount=1.0, normalize=False)
    assert_close(estimated_gradient(estimator, group_size, horizon), true_gradient(horizon))


@pytest.mark.parametrize(("group_size", "horizon"), SIZES)
def test_centred_returns_are_short_by_one_member(group_size, horizon):
    # The own return is part of the mean that is subtracted: (G - 1) / G of the gradient.
    found = estimated_gradient(GroupZScore(scale="none"), group_size, horizon)
    assert_close(found, (group_size - 1) / group_size * true_gradient(horizon))


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, -3.0]])
def test_any_critic_leaves_full_returns_unbiased(values):
    # With lambda = 1 and discount 1 the values are a baseline, however wrong they are.
    found = estimated_gradient(GAE(1.0, 1.0, normalize=False), 1, 3, f64(values))
    assert_close(found, true_gradient(3))


def test_dividing_by_the_group_s_std_changes_the_direction():
    # In a group of two the z-scores are +1 and -1 whatever the returns: how much better one is no longer counts.
    # Measured in this world: a cosine of 0.982, 11 degrees off, where the centred returns have 1.
    def cosine(estimator):
        found, true = estimated_gradient(estimator, 2, 3), true_gradient(3)
        return float((found * true).sum() / (found.norm() * true.norm()))

    assert cosine(GroupZScore(scale="none")) == pytest.approx(1.0, abs=1e-12)
    assert cosine(GroupZScore(epsilon=0.0)) == pytest.approx(0.982, abs=0.001)
