import math
from dataclasses import FrozenInstanceError, replace

import pytest
import reference as oracle
import torch
from helpers import bools, make_batch
from hypothesis import given
from hypothesis import strategies as st

from grpolib import (
    GAE,
    AdvantageEstimator,
    AnchorState,
    GroupZScore,
    LeaveOneOut,
    ProcessSupervision,
    RewardToGo,
    TimestepLeaveOneOut,
    functional,
)

NAN = math.nan


ESTIMATORS = {
    "z-score": GroupZScore(),
    "z-score, n - 1": GroupZScore(correction=1, epsilon=1e-6),
    "z-score, batch std": GroupZScore(scale="batch"),
    "centred": GroupZScore(scale="none"),
    "leave one out": LeaveOneOut(),
    "process supervision": ProcessSupervision(),
    "process supervision, discounted": ProcessSupervision(discount=0.9, correction=1),
    "timestep leave one out": TimestepLeaveOneOut(normalize=False),
    "timestep leave one out, normalised": TimestepLeaveOneOut(discount=0.9),
    "reward to go, group": RewardToGo(),
    "reward to go, batch": RewardToGo(over="batch"),
    "reward to go, timestep": RewardToGo(over="timestep", correction=1),
    "anchor state": AnchorState(radius=1.0),
    "generalised": GAE(),
}
OF_THE_BATCH = {
    "z-score, batch std",
    "timestep leave one out, normalised",
    "reward to go, batch",
    "anchor state",
    "generalised",
}
"""Groups of the batch share a statistic; elsewhere a group's advantages are its own business."""
TELL_STEPS_APART = {"reward to go, group", "reward to go, batch", "anchor state", "generalised"}
"""Those that compare the steps of one episode too: equal episodes have advantages all the same."""
NEED_NO_PEERS = {
    "process supervision",
    "process supervision, discounted",
    "reward to go, group",
    "reward to go, batch",
    "reward to go, timestep",
    "generalised",
}
"""Those for which a group of one is no error."""
COUNTED_STEPS_ONLY = {"anchor state", "generalised"}
"""Those whose standard deviation is that of the steps that the loss counts."""


def without(names):
    return [name for name in ESTIMATORS if name not in names]


def estimator(name):
    return ESTIMATORS[name]


def rewards(size, seed=0, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * 3 + 1


def batch_of(kind):
    batch = plain_batch_of(kind)
    values = {"values": torch.ones_like(batch.rewards), "final_values": torch.ones(batch.num_episodes)}
    return replace(batch, **values)


def plain_batch_of(kind):
    if kind == "even":
        return make_batch((3, 3, 3, 3), (0, 0, 1, 1), rewards(12))
    if kind == "uneven":
        return make_batch((2, 5, 1, 4, 3, 2, 6), (0, 0, 0, 1, 1, 2, 2), rewards(23))
    if kind == "one step each":
        return make_batch((1,) * 6, (0, 0, 0, 1, 1, 1), rewards(6))
    if kind == "single group":
        return make_batch((2, 5, 1), rewards=rewards(8))
    if kind == "constant rewards":
        return make_batch((2, 2, 2, 2), (0, 0, 1, 1), torch.full((8,), 0.2))
    if kind == "unscored episodes":
        values = rewards(23)
        values[2:7] = NAN
        return replace(
            make_batch((2, 5, 1, 4, 3, 2, 6), (0, 0, 0, 1, 1, 2, 2), torch.zeros(23)),
            rewards=values,
            scored=bools(True, False, True, True, False, False, False),
        )
    if kind == "nothing scored":
        return make_batch((2, 3), rewards=torch.full((5,), NAN), scored=bools(False, False))
    if kind == "penalties":
        return make_batch((2, 5, 1, 4), (0, 0, 1, 1), rewards(12), penalties=rewards(12, 1))
    if kind == "factors":
        return make_batch((2, 5, 1, 4), (0, 0, 1, 1), rewards(12), reward_factors=torch.full((12,), 0.25))
    if kind == "loss mask":
        return make_batch((2, 2), rewards=rewards(4), loss_mask=bools(True, False, True, True))
    assert kind == "float64"
    return make_batch((2, 5, 1, 4), (0, 0, 1, 1), rewards(12, dtype=torch.float64))


KINDS = [
    "even",
    "uneven",
    "one step each",
    "single group",
    "constant rewards",
    "unscored episodes",
    "nothing scored",
    "penalties",
    "factors",
    "loss mask",
    "float64",
]


# The contract: every estimator on every kind of batch.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_finite_advantage_a_step_without_gradient(name, kind):
    batch = batch_of(kind)
    for value in (batch.rewards, batch.log_probs):
        value.requires_grad_()
    advantages = estimator(name)(batch)
    assert advantages.shape == (batch.num_steps,)
    assert advantages.dtype == batch.rewards.dtype
    assert not advantages.requires_grad
    assert bool(advantages.isfinite().all())
    is_silent = kind == "nothing scored" or (kind == "constant rewards" and name not in TELL_STEPS_APART)
    assert bool(advantages.any()) != is_silent


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_batch_is_left_as_it_was(name, kind):
    batch = batch_of(kind)
    before = {key: value.clone() for key, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    estimator(name)(batch)
    for key, value in before.items():
        torch.testing.assert_close(getattr(batch, key), value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [0.0, 0.2, 1 / 3, -500.1])
@pytest.mark.parametrize("name", without(TELL_STEPS_APART))
def test_a_group_of_equal_episodes_gets_exactly_zero(name, value):
    # Equal lengths and rewards: there is nothing to tell the members apart.
    batch = make_batch((3, 3, 3, 3, 3), (0, 0, 0, 1, 1), torch.full((15,), value))
    assert estimator(name)(batch).tolist() == [0.0] * 15


@pytest.mark.parametrize("name", without(TELL_STEPS_APART))
def test_a_group_of_equal_episodes_gets_exactly_zero_beside_another(name):
    values = torch.cat([torch.tensor([1.0, 5.0, 2.0, 7.0]), torch.full((6,), 0.2)])
    batch = make_batch((2, 2, 2, 2, 2), (0, 0, 1, 1, 1), values)
    advantages = estimator(name)(batch)
    assert advantages[4:].tolist() == [0.0] * 6
    assert bool(advantages[:4].any())


@pytest.mark.parametrize("name", without({"generalised"}))
def test_unscored_episodes_get_zero_and_leave_the_statistics(name):
    batch = batch_of("unscored episodes")
    advantages = estimator(name)(batch)
    parts = advantages.split(batch.lengths.tolist())
    # The fourth is the only scored one of its group: nothing is left to compare it with.
    for episode in (1, 3, 4, 5, 6):
        assert not parts[episode].any()
    scores = torch.cat([batch.rewards[:2], batch.rewards[7:8]])
    inputs = batch.inputs.select_steps(torch.tensor([0, 1, 7]))
    expected = estimator(name)(make_batch((2, 1), rewards=scores, inputs=inputs))
    assert bool(expected.any())
    if name != "anchor state":  # its radius is in units of all observations
        torch.testing.assert_close(torch.cat([parts[0], parts[2]]), expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_generalised_advantages_of_unscored_episodes_are_zero(normalize):
    # Episodes 0, 2 and 3 are scored; the others hold rewards that are no numbers.
    piece = GAE(normalize=normalize)
    batch = batch_of("unscored episodes")
    advantages = piece(batch)
    episodes = torch.tensor([0, 2, 3])
    rows = batch.steps_of(episodes)
    kept = make_batch((2, 1, 4), rewards=batch.rewards[rows], values=batch.values[rows], final_values=torch.ones(3))
    torch.testing.assert_close(advantages[rows], piece(kept))
    others = torch.ones(batch.num_steps, dtype=torch.bool).index_fill(0, rows, False)
    assert not advantages[others].any()


@pytest.mark.parametrize("name", without(OF_THE_BATCH))
def test_other_groups_do_not_change_a_group_s_advantages(name):
    first = make_batch((2, 5, 1), rewards=rewards(8))
    both = make_batch((2, 5, 1, 3, 3), (0, 0, 0, 1, 1), torch.cat([first.rewards, 100 * rewards(6, 2)]))
    torch.testing.assert_close(estimator(name)(both)[:8], estimator(name)(first))


@pytest.mark.parametrize("name", without(COUNTED_STEPS_ONLY))
def test_the_loss_mask_is_no_business_of_an_estimator(name):
    batch = batch_of("loss mask")
    assert torch.equal(estimator(name)(batch), estimator(name)(replace(batch, loss_mask=None)))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_read_rewards_minus_penalties(name):
    batch = batch_of("penalties")
    net = replace(batch, rewards=batch.rewards - batch.penalties, penalties=None)
    torch.testing.assert_close(estimator(name)(batch), estimator(name)(net))
    assert not torch.allclose(estimator(name)(batch), estimator(name)(replace(batch, penalties=None)))


@pytest.mark.parametrize("name", without(NEED_NO_PEERS))
def test_a_group_of_one_is_refused(name):
    batch = make_batch((2, 1, 3), (0, 0, 1))
    with pytest.raises(ValueError, match=r"group 1 has one member"):
        estimator(name)(batch)


# Agreement with the functions, and with loops.


@st.composite
def ragged(draw):
    """(lengths, group ids, rewards): uneven groups of two to four episodes."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    group_ids = [group for group, size in enumerate(sizes) for _ in range(size)]
    lengths = draw(st.lists(st.integers(1, 5), min_size=len(group_ids), max_size=len(group_ids)))
    number = st.floats(-10, 10, width=32, allow_subnormal=False)
    return lengths, group_ids, draw(st.lists(number, min_size=sum(lengths), max_size=sum(lengths)))


def on_steps(of_episodes, lengths):
    return [value for value, length in zip(of_episodes, lengths, strict=True) for _ in range(length)]


def episode_returns(values, lengths):
    return [math.fsum(episode) for episode in oracle.split(values, lengths)]


def assert_agrees(name_or_estimator, case, expected):
    lengths, group_ids, values = case
    batch = make_batch(tuple(lengths), group_ids, torch.tensor(values, dtype=torch.float64))
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(name_or_estimator(batch), expected, rtol=1e-6, atol=1e-6)


@given(ragged(), st.sampled_from([0, 1]), st.sampled_from(["group", "batch", "none"]))
def test_group_z_scores_of_the_returns(case, correction, scale):
    lengths, group_ids, values = case
    scores = episode_returns(values, lengths)
    expected = oracle.group_z_scores(scores, group_ids, 0.01, correction, scale)
    assert_agrees(GroupZScore(0.01, correction, scale), case, on_steps(expected, lengths))


@given(ragged())
def test_leave_one_out_of_the_returns(case):
    lengths, group_ids, values = case
    expected = oracle.leave_one_out_advantages(episode_returns(values, lengths), group_ids)
    assert_agrees(LeaveOneOut(), case, on_steps(expected, lengths))


@given(ragged(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0, 1]))
def test_process_supervision_of_the_steps(case, discount, correction):
    lengths, group_ids, values = case
    expected = oracle.process_supervision_advantages(values, lengths, group_ids, discount, 0.01, correction)
    assert_agrees(ProcessSupervision(discount, 0.01, correction), case, expected)


@given(ragged(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([True, False, "timestep"]))
def test_timestep_leave_one_out_of_the_steps(case, discount, normalize):
    lengths, group_ids, values = case
    # A spread that is rounding alone may be 0 here and not there.
    unscaled = oracle.timestep_leave_one_out_advantages(values, lengths, group_ids, discount, False)
    if normalize and oracle.std(unscaled) < 1e-3:
        return
    expected = oracle.timestep_leave_one_out_advantages(values, lengths, group_ids, discount, normalize)
    assert_agrees(TimestepLeaveOneOut(discount, normalize), case, expected)


def test_the_published_defaults():
    batch = batch_of("uneven")
    of_steps = functional.group_z_scores(batch.episode_returns, batch.group_ids, epsilon=1e-4, correction=0)
    assert torch.equal(GroupZScore()(batch), of_steps[batch.episode_ids])
    process = functional.process_supervision_advantages(
        batch.rewards, batch.lengths, batch.group_ids, discount=1.0, epsilon=1e-4, correction=0
    )
    assert torch.equal(ProcessSupervision()(batch), process)
    timestep = functional.timestep_leave_one_out_advantages(
        batch.rewards, batch.lengths, batch.group_ids, discount=0.99, normalize=True
    )
    assert torch.equal(TimestepLeaveOneOut()(batch), timestep)


# Worked numbers.


def test_three_of_eight_succeed():
    # mean 3/8, population std sqrt(15)/8; the leave-one-out mean of a success is 2/7, of a failure 3/7.
    batch = make_batch((1,) * 8, rewards=torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0]))
    for piece, success, failure in [
        (GroupZScore(epsilon=0.0, correction=1), 1.207615, -0.724569),
        (GroupZScore(epsilon=0.0), 1.290994, -0.774597),
        (GroupZScore(scale="none"), 0.625, -0.375),
        (LeaveOneOut(), 0.714286, -0.428571),
    ]:
        torch.testing.assert_close(piece(batch), torch.tensor([success] * 3 + [failure] * 5))


def test_timestep_baseline_of_a_long_and_a_short_episode():
    # Rewards to go 3, 2 and 5. At t = 0: 3 - 5 and 5 - 3; at t = 1 nobody else runs: 2 - 5.
    batch = make_batch((2, 1), rewards=torch.tensor([1.0, 2.0, 5.0]))
    advantages = TimestepLeaveOneOut(discount=1.0, normalize=False)(batch)
    assert advantages.tolist() == [-2.0, -3.0, 2.0]


def test_process_rewards_only_where_they_were_given():
    # Given rewards 1, 3 and 2, 2: mean 2, std sqrt(1/2); a 0 that was not given is no reward of 0.
    values = torch.tensor([0.0, 1.0, 3.0, 2.0, 0.0, 2.0])
    mask = bools(False, True, True, True, False, True)
    batch = make_batch((3, 3), rewards=values, reward_mask=mask)
    advantages = ProcessSupervision(epsilon=0.0)(batch)
    root = math.sqrt(2)
    # Standardised -root, root and 0, 0; summed from each step on.
    torch.testing.assert_close(advantages, torch.tensor([0.0, 0.0, root, 0.0, 0.0, 0.0]))


def test_process_rewards_stay_with_their_steps_where_episodes_are_left_out():
    values = torch.tensor([9.0, 9.0, 0.0, 1.0, 3.0, 2.0, 0.0, 2.0])
    mask = bools(True, True, False, True, True, True, False, True)
    batch = make_batch((2, 3, 3), rewards=values, reward_mask=mask, scored=bools(False, True, True))
    root = math.sqrt(2)
    expected = torch.tensor([0.0, 0.0, 0.0, 0.0, root, 0.0, 0.0, 0.0])
    torch.testing.assert_close(ProcessSupervision(epsilon=0.0)(batch), expected)


def test_process_rewards_and_penalties_together_are_refused():
    batch = make_batch((2, 1), reward_mask=bools(True, False, True), penalties=torch.zeros(3))
    with pytest.raises(ValueError, match=r"penalties.*reward_mask.*KL term in the loss"):
        ProcessSupervision()(batch)


def test_a_group_with_one_process_reward_is_refused():
    batch = make_batch((2, 1, 2), (0, 0, 0), reward_mask=bools(False, True, False, False, False))
    with pytest.raises(ValueError, match=r"group 0 has .*one|group 0 .*1 step reward"):
        ProcessSupervision()(batch)


# As pieces.


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_frozen_values(name):
    piece = estimator(name)
    assert piece == replace(piece)
    with pytest.raises((FrozenInstanceError, TypeError)):
        piece.epsilon = 3.0


def test_a_plain_function_is_an_estimator():
    def advantages(batch):
        return batch.rewards

    kept: AdvantageEstimator = advantages
    assert torch.equal(kept(make_batch()), make_batch().rewards)


@given(ragged(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from(["group", "batch", "timestep"]))
def test_reward_to_go_standardised_over_group_batch_or_time_step(case, discount, over):
    lengths, group_ids, values = case
    to_go = oracle.discounted_returns(values, lengths, discount)
    places = [(group, t) for group, length in zip(group_ids, lengths, strict=True) for t in range(length)]
    labels = {"group": [group for group, _ in places], "batch": [0] * len(places), "timestep": places}[over]
    expected = oracle.group_z_scores(to_go, labels, epsilon=0.01)
    assert_agrees(RewardToGo(over, discount, epsilon=0.01), case, expected)


@pytest.mark.parametrize(
    ("estimator", "arguments", "message"),
    [
        (GroupZScore, {"epsilon": -1.0}, "epsilon is -1.0"),
        (GroupZScore, {"epsilon": float("nan")}, "epsilon is nan"),
        (GroupZScore, {"correction": 2}, "correction is 2"),
        (ProcessSupervision, {"discount": 1.5}, "discount is 1.5"),
        (ProcessSupervision, {"epsilon": -1.0}, "epsilon is -1.0"),
        (TimestepLeaveOneOut, {"discount": 2.0}, "discount is 2.0"),
        (TimestepLeaveOneOut, {"discount": float("nan")}, "discount is nan"),
        (RewardToGo, {"discount": -0.1}, "discount is -0.1"),
        (RewardToGo, {"epsilon": -1.0}, "epsilon is -1.0"),
        (AnchorState, {"radius": -1.0}, "radius is -1.0"),
        (AnchorState, {"weight": -1.0}, "weight is -1.0"),
        (GAE, {"discount": 1.1}, "discount is 1.1"),
        (GAE, {"gae_lambda": -1.0}, "gae_lambda is -1.0"),
    ],
)
def test_a_setting_out_of_range_fails_where_it_is_written(estimator, arguments, message):
    with pytest.raises(ValueError, match=message):
        estimator(**arguments)
