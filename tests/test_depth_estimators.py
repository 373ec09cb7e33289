"""Estimators on whole batches: loops as oracles, episodes without a score, and what all of them share."""

import dataclasses
import math

import pytest
import reference as oracle
import torch
from helpers import bools, ints, make_batch
from hypothesis import given
from hypothesis import strategies as st

from grpolib import (
    GAE,
    AnchorState,
    GroupZScore,
    LeaveOneOut,
    ProcessSupervision,
    RewardToGo,
    StepInputs,
    TimestepLeaveOneOut,
)
from grpolib.batch import concatenate

NAN, INF = math.nan, math.inf


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def grouped(draw, max_groups=3, max_members=4, max_length=5):
    """(lengths, group_ids, rewards) with groups of at least two members."""
    members = draw(st.lists(st.integers(2, max_members), min_size=1, max_size=max_groups))
    group_ids = [group for group, count in enumerate(members) for _ in range(count)]
    lengths = draw(st.lists(st.integers(1, max_length), min_size=len(group_ids), max_size=len(group_ids)))
    number = st.floats(-10.0, 10.0, width=32, allow_subnormal=False)
    return lengths, group_ids, draw(st.lists(number, min_size=sum(lengths), max_size=sum(lengths)))


def batch_of(case, **fields):
    lengths, group_ids, rewards = case
    return make_batch(lengths, group_ids, f64(rewards), **fields)


def assert_matches(actual, expected):
    torch.testing.assert_close(actual, f64(expected), rtol=1e-8, atol=1e-8)


# Reward to go, standardised over the steps of a group, of the batch, or of a time step.


def loop_reward_to_go(case, over, discount, epsilon, correction):
    lengths, group_ids, rewards = case
    to_go = oracle.discounted_returns(rewards, lengths, discount)
    places = [(group_ids[i], t) for i, length in enumerate(lengths) for t in range(length)]
    key = {"group": lambda place: place[0], "batch": lambda _: None, "timestep": lambda place: place}[over]
    advantages = []
    for own, place in zip(to_go, places, strict=True):
        compared = [other for other, there in zip(to_go, places, strict=True) if key(there) == key(place)]
        if len(compared) == 1 or max(compared) == min(compared):
            advantages.append(0.0)
        else:
            advantages.append((own - oracle.mean(compared)) / (oracle.std(compared, correction) + epsilon))
    return advantages


# Discounts and rewards that floats hold exactly, so that equal sums are equal in any order of summation.
whole = st.integers(-8, 8).map(float)


@st.composite
def grouped_whole(draw):
    lengths, group_ids, rewards = draw(grouped())
    return lengths, group_ids, draw(st.lists(whole, min_size=len(rewards), max_size=len(rewards)))


@given(grouped_whole(), st.sampled_from([1.0, 0.5, 0.0]), st.sampled_from([0, 1]), st.sampled_from([1e-2, 1.0]))
@pytest.mark.parametrize("over", ["group", "batch", "timestep"])
def test_reward_to_go_agrees_with_a_loop(over, case, discount, correction, epsilon):
    estimator = RewardToGo(over, discount=discount, epsilon=epsilon, correction=correction)
    assert_matches(estimator(batch_of(case)), loop_reward_to_go(case, over, discount, epsilon, correction))


def test_reward_to_go_numbers():
    # Returns to go 3, 2 | 4 in one group: mean 3, std sqrt(2/3). At time 0: 3 and 4; at time 1 one member runs alone.
    batch = make_batch((2, 1), rewards=f64([1.0, 2.0, 4.0]))
    root = math.sqrt(1.5)
    assert_matches(RewardToGo("group", discount=1.0, epsilon=0.0)(batch), [0.0, -root, root])
    assert_matches(RewardToGo("timestep", discount=1.0, epsilon=0.0)(batch), [-1.0, 0.0, 1.0])
    # Two groups of the same returns: blind to groups, or not.
    two = make_batch((1, 1, 1, 1), (0, 0, 1, 1), f64([0.0, 2.0, 10.0, 12.0]))
    assert_matches(RewardToGo("group", epsilon=0.0)(two), [-1.0, 1.0, -1.0, 1.0])
    assert_matches(RewardToGo("batch", epsilon=0.0)(two), [x / math.sqrt(26) for x in (-6, -4, 4, 6)])


def test_the_defaults_of_reward_to_go():
    assert RewardToGo() == RewardToGo(over="group", discount=0.99, epsilon=1e-8, correction=0)


@pytest.mark.usefixtures("without_shape_hook")
def test_reward_to_go_over_something_else_raises():
    with pytest.raises(ValueError, match="over is 'episode': choose 'group', 'batch' or 'timestep'"):
        RewardToGo("episode")


# Steps in nearly the same state.


def loop_anchor_state(case, states, radius, weight, discount, epsilon):
    lengths, group_ids, rewards = case
    columns = list(zip(*states, strict=True))
    scales = [oracle.std(column) for column in columns]
    scaled = [[x / s if s > 0 else x for x, s in zip(state, scales, strict=True)] for state in states]
    to_go = oracle.discounted_returns(rewards, lengths, discount)
    episode_of = [i for i, length in enumerate(lengths) for _ in range(length)]
    near_term = []
    for row, own in enumerate(episode_of):
        near = [
            to_go[k]
            for k, other in enumerate(episode_of)
            if other != own and group_ids[other] == group_ids[own] and math.dist(scaled[k], scaled[row]) <= radius
        ]
        near_term.append(to_go[row] - oracle.mean(near) if near else 0.0)
    spread = oracle.std(near_term)
    returns = [math.fsum(episode) for episode in oracle.split(rewards, lengths)]
    z_scores = oracle.group_z_scores(returns, group_ids, epsilon)
    return [
        z_scores[episode] + (weight * near / spread if spread > 0 else 0.0)
        for episode, near in zip(episode_of, near_term, strict=True)
    ]


def visiting(case, states, **fields):
    observations = torch.tensor(states, dtype=torch.float32)
    return batch_of(case, inputs=StepInputs(observations, torch.zeros(len(states))), **fields)


@given(grouped_whole(), st.data(), st.sampled_from([0.0, 0.7, 1e6]), st.sampled_from([0.0, 0.5, 2.0]))
def test_anchor_states_agree_with_a_loop(case, data, radius, weight):
    # Two dimensions of very different size, of which one may be constant.
    places = st.tuples(st.integers(0, 2).map(float), st.integers(0, 1).map(lambda k: 1000.0 * k))
    states = data.draw(st.lists(places, min_size=len(case[2]), max_size=len(case[2])))
    estimator = AnchorState(radius=radius, weight=weight, discount=0.5, epsilon=1e-2)
    expected = loop_anchor_state(case, states, radius, weight, 0.5, 1e-2)
    torch.testing.assert_close(estimator(visiting(case, states)), f64(expected), rtol=1e-4, atol=1e-4)


CASE = [2, 3, 1, 2], [0, 0, 1, 1], [1.0, 2.0, 0.0, 4.0, -1.0, 3.0, 1.0, 0.5]


def test_without_weight_it_is_the_group_z_score():
    states = [[float(k)] for k in range(8)]
    estimator = AnchorState(weight=0.0, epsilon=0.3)
    assert torch.equal(estimator(visiting(CASE, states)), GroupZScore(epsilon=0.3)(batch_of(CASE)))


def test_states_that_nobody_else_visits_add_nothing():
    states = [[float(k)] for k in range(8)]
    assert torch.equal(AnchorState(radius=0.0)(visiting(CASE, states)), GroupZScore()(batch_of(CASE)))


@pytest.mark.parametrize("steps", [3, 40])
def test_radius_zero_finds_equal_states_in_episodes_of_any_length(steps):
    # Both members visit the same states; on each step one has a reward to go 1 more than the other.
    states = torch.randn(steps, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    rewards = torch.zeros(2 * steps, dtype=torch.float64)
    rewards[steps - 1] = 1.0
    batch = make_batch((steps, steps), rewards=rewards, inputs=StepInputs(states, torch.zeros(2 * steps)))
    advantages = AnchorState(radius=0.0, discount=1.0, epsilon=0.0)(batch)
    assert_matches(advantages, [2.0] * steps + [-2.0] * steps)


def test_images_are_states_too():
    states = torch.zeros(8, 2, 3, 1, dtype=torch.uint8)
    states[::2] = 255
    flat = visiting(CASE, states.flatten(1).float().tolist())
    images = batch_of(CASE, inputs=StepInputs(states, torch.zeros(8)))
    torch.testing.assert_close(AnchorState(radius=0.1)(images), AnchorState(radius=0.1)(flat))


@pytest.mark.parametrize("state", [1e6, NAN, INF])
def test_an_unscored_episode_s_states_do_not_scale_the_others(state):
    # The radius is in standard deviations of the observations; those of an episode that is out must not count.
    states = [[0.0], [10.0], [11.0], [0.5], [20.0]]
    case = [2, 3], [0, 0], [1.0, 2.0, 5.0, 4.0, 3.0]
    without = AnchorState(radius=0.3)(visiting(case, states))
    with_unscored = visiting(
        ([2, 3, 2], [0, 0, 0], [1.0, 2.0, 5.0, 4.0, 3.0, 0.0, 0.0]),
        [*states, [state], [state]],
        scored=bools(True, True, False),
    )
    advantages = AnchorState(radius=0.3)(with_unscored)
    torch.testing.assert_close(advantages[:5], without)
    assert advantages[5:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("radius", [-0.5, NAN])
def test_a_radius_below_zero_raises(radius):
    with pytest.raises(ValueError, match=f"radius is {radius}"):
        AnchorState(radius=radius)(visiting(CASE, [[0.0]] * 8))


def test_the_defaults_of_anchor_states():
    assert AnchorState() == AnchorState(radius=0.5, weight=1.0, discount=0.99, epsilon=1e-4)


# Episodes without a score.


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # Three left: mean 2/3, std (divisor 2) 0.577350.
        ([1.0, NAN, 0.0, 1.0], [0.577350, 0.0, -1.154701, 0.577350]),
        ([INF, 1.0, 0.0, 1.0], [0.0, 0.577350, -1.154701, 0.577350]),
        # One left, and none: nothing to compare.
        ([NAN, NAN, NAN, 1.0], [0.0, 0.0, 0.0, 0.0]),
        ([NAN, -INF, NAN, NAN], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_members_without_a_score_are_out_of_the_statistics(scores, expected):
    clean = [3.0, 1.0, 2.0]
    rewards = torch.tensor([*scores, *clean])
    batch = make_batch([1] * 7, [0] * 4 + [1] * 3, rewards, scored=rewards.isfinite())
    advantages = GroupZScore(epsilon=0.0, correction=1)(batch)
    torch.testing.assert_close(advantages[:4], torch.tensor(expected), rtol=1e-5, atol=1e-6)
    alone = GroupZScore(epsilon=0.0, correction=1)(make_batch([1] * 3, rewards=torch.tensor(clean)))
    assert torch.equal(advantages[4:], alone)


def test_a_score_that_is_not_finite_is_refused_unless_it_is_left_out():
    with pytest.raises(ValueError, match=r"reward inf at step 0 of member 0 of group 0.*scored=False"):
        make_batch([1] * 4, rewards=torch.tensor([INF, 0.0, 0.0, 0.0]))


# Estimators that compare within a group, and those that divide by something of the whole batch.
WITHIN = [
    GroupZScore(),
    GroupZScore(correction=1, epsilon=0.0),
    GroupZScore(scale="none"),
    LeaveOneOut(),
    ProcessSupervision(),
    ProcessSupervision(discount=0.9, correction=1),
    TimestepLeaveOneOut(normalize=False),
    RewardToGo("group"),
    RewardToGo("timestep"),
    AnchorState(weight=0.0),
]
ACROSS = [
    GroupZScore(scale="batch"),
    TimestepLeaveOneOut(),
    RewardToGo("batch"),
    AnchorState(radius=2.0),
    GAE(),
]
ALL = [*WITHIN, *ACROSS, GAE(normalize=False)]


def drawn(lengths, group_ids, seed=0, dtype=torch.float32, **fields):
    """A batch of random numbers that every estimator can read."""
    rng = torch.Generator().manual_seed(seed)
    steps, episodes = sum(lengths), len(lengths)

    def noise(*shape):
        return torch.randn(*shape, generator=rng).to(dtype)

    return make_batch(
        lengths,
        group_ids,
        noise(steps),
        **{
            "inputs": StepInputs(noise(steps, 2).float(), torch.zeros(steps)),
            "values": noise(steps),
            "final_values": noise(episodes),
            "terminated": torch.rand(episodes, generator=rng) < 0.5,
            **fields,
        },
    )


@pytest.mark.parametrize("estimator", WITHIN)
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
def test_garbage_in_an_unscored_episode_leaves_every_other_group_s_bits_alone(estimator, garbage):
    lengths, group_ids = [2, 3, 1, 4, 2, 1], [0, 0, 1, 1, 1, 1]
    clean = drawn(lengths, group_ids)
    rewards = clean.rewards.clone()
    rewards[6:10] = garbage
    scored = bools(True, True, True, False, True, True)
    advantages = estimator(dataclasses.replace(clean, rewards=rewards, scored=scored))
    assert torch.equal(advantages[:5], estimator(clean)[:5])
    assert advantages[6:10].tolist() == [0.0] * 4
    assert advantages.isfinite().all()


@pytest.mark.parametrize("estimator", ALL)
def test_an_unscored_episode_is_one_that_was_never_sampled(estimator):
    without = drawn([2, 3, 1, 2], [0, 0, 1, 1])
    bad = drawn([4, 2], [0, 0], seed=5)
    rewards = torch.cat([without.rewards, bad.rewards])
    rewards[8:] = NAN

    def joined(name):
        return torch.cat([getattr(without, name), getattr(bad, name)])

    with_unscored = make_batch(
        [2, 3, 1, 2, 4, 2],
        [0, 0, 1, 1, 1, 1],
        rewards,
        inputs=without.inputs.concatenate([bad.inputs]),
        scored=bools(True, True, True, True, False, False),
        **{name: joined(name) for name in ("values", "final_values", "terminated")},
    )
    advantages = estimator(with_unscored)
    torch.testing.assert_close(advantages[:8], estimator(without), rtol=1e-5, atol=1e-6)
    assert advantages[8:].tolist() == [0.0] * 6


@pytest.mark.parametrize("estimator", [e for e in ALL if not isinstance(e, GAE)])
def test_a_group_left_with_one_scored_member_gets_zero(estimator):
    batch = drawn([2, 3, 2, 2], [0, 0, 1, 1], scored=bools(True, False, True, True))
    advantages = estimator(batch)
    assert advantages[:5].tolist() == [0.0] * 5
    assert advantages[5:].any()


@pytest.mark.parametrize("estimator", ALL)
def test_a_batch_without_a_scored_episode_gets_zeros(estimator):
    batch = drawn([2, 1, 2], [0, 0, 0], scored=bools(False, False, False))
    assert estimator(batch).tolist() == [0.0] * 5


@pytest.mark.parametrize("estimator", ALL)
def test_all_scored_is_the_same_as_no_flag(estimator):
    batch = drawn([2, 3, 1, 2], [0, 0, 1, 1])
    flagged = dataclasses.replace(batch, scored=bools(True, True, True, True))
    torch.testing.assert_close(estimator(flagged), estimator(batch))


@pytest.mark.parametrize("estimator", [e for e in ALL if not isinstance(e, GAE | ProcessSupervision | RewardToGo)])
def test_a_sampled_group_of_one_raises_also_when_others_are_unscored(estimator):
    batch = drawn([2, 1, 3, 2], [0, 1, 1, 1], scored=bools(True, True, True, False))
    with pytest.raises(ValueError, match="one member"):
        estimator(batch)


# What all of them share.


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_finite_number_a_step_without_gradient(estimator, dtype):
    for lengths, group_ids in (([1, 1], [0, 0]), ([3, 1, 4], [0, 0, 0]), ([2, 2, 1, 5, 3], [0, 0, 0, 1, 1])):
        batch = drawn(lengths, group_ids, dtype=dtype)
        advantages = estimator(batch)
        assert advantages.shape == batch.rewards.shape
        assert advantages.dtype == dtype
        assert advantages.isfinite().all()
        assert not advantages.requires_grad


@pytest.mark.parametrize("estimator", [e for e in ALL if not isinstance(e, GAE)])
@pytest.mark.parametrize("reward", [0.2, 0.3, 1 / 3, 0.0])
def test_episodes_that_are_all_alike_get_exactly_zero(estimator, reward):
    rewards = torch.zeros(24)
    rewards[3::4] = reward
    batch = make_batch([4] * 6, [0, 0, 0, 1, 1, 1], rewards, inputs=StepInputs(torch.zeros(24, 2), torch.zeros(24)))
    across_time = isinstance(estimator, ProcessSupervision | AnchorState)
    if across_time or getattr(estimator, "over", "timestep") != "timestep":
        # These compare steps with steps, and the last one of each episode earned more than the others.
        advantages = estimator(batch).view(6, 4)
        assert torch.equal(advantages, advantages[:1].expand(6, 4))
    else:
        assert estimator(batch).tolist() == [0.0] * 24


@pytest.mark.parametrize("estimator", WITHIN)
def test_another_group_leaves_the_bits_alone(estimator):
    batches = [drawn([2, 3], [0, 0], seed=1), drawn([4, 1, 2], [0, 0, 0], seed=2)]
    together = estimator(concatenate(batches))
    assert torch.equal(together, torch.cat([estimator(batch) for batch in batches]))


@pytest.mark.parametrize("estimator", ACROSS)
def test_another_group_rescales_what_is_divided_by_the_batch(estimator):
    batches = [drawn([2, 3], [0, 0], seed=1), drawn([4, 1, 2], [0, 0, 0], seed=2)]
    together = estimator(concatenate(batches))
    assert not torch.allclose(together[:5], estimator(batches[0]), atol=1e-4)


@pytest.mark.parametrize("estimator", ALL)
def test_the_order_of_the_members_does_not_matter(estimator):
    batch = drawn([2, 3, 1, 4], [0, 0, 0, 0])
    order = ints(2, 0, 3, 1)
    rows = batch.steps_of(order)
    shuffled = make_batch(
        batch.lengths[order].tolist(),
        rewards=batch.rewards[rows],
        inputs=batch.inputs.select_steps(rows),
        values=batch.values[rows],
        final_values=batch.final_values[order],
        terminated=batch.terminated[order],
    )
    torch.testing.assert_close(estimator(shuffled), estimator(batch)[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", [e for e in ALL if e not in (GAE(), AnchorState(radius=2.0))])
def test_a_loss_mask_changes_no_advantage(estimator):
    # It is a matter of the loss: rewards of masked steps are earned all the same.
    batch = drawn([2, 3, 1, 2], [0, 0, 1, 1])
    mask = bools(True, False, True, True, False, True, False, True)
    assert torch.equal(estimator(dataclasses.replace(batch, loss_mask=mask)), estimator(batch))


@pytest.mark.parametrize("estimator", [AnchorState(radius=2.0), GAE()])
def test_normalisation_is_over_the_counted_steps(estimator):
    batch = drawn([2, 3, 1, 2], [0, 0, 1, 1])
    mask = bools(True, False, True, True, False, True, False, True)
    masked = estimator(dataclasses.replace(batch, loss_mask=mask))
    assert not torch.allclose(masked, estimator(batch), atol=1e-4)
    episode_term = GroupZScore()(batch) if isinstance(estimator, AnchorState) else torch.zeros(8)
    counted = (masked - episode_term)[mask].double()
    assert float(counted.var(correction=0)) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("estimator", [e for e in ALL if not isinstance(e, ProcessSupervision)])
def test_a_reward_mask_is_read_by_process_supervision_alone(estimator):
    batch = drawn([2, 3, 1, 2], [0, 0, 1, 1])
    mask = bools(True, False, True, True, False, True, True, True)
    masked = dataclasses.replace(batch, reward_mask=mask)
    assert torch.equal(estimator(masked), estimator(batch))
    assert not torch.equal(ProcessSupervision()(masked), ProcessSupervision()(batch))


# Process supervision through a batch.


def test_step_rewards_where_they_were_given():
    # Given 1, 0 | 2: mean 1, std sqrt(2/3); z = 0, -1.2247, 1.2247, summed from each step on.
    given = bools(True, False, True, False, True)
    batch = make_batch((3, 2), rewards=f64([1.0, 9.0, 0.0, 9.0, 2.0]), reward_mask=given)
    z = math.sqrt(1.5)
    assert_matches(ProcessSupervision(epsilon=0.0)(batch), [-z, -z, -z, z, z])


def test_step_rewards_of_unscored_members_are_out():
    rewards = f64([1.0, 0.0, NAN, INF, 2.0])
    mask = bools(True, True, True, True, True)
    batch = make_batch((2, 2, 1), rewards=rewards, reward_mask=mask, scored=bools(True, False, True))
    z = math.sqrt(1.5)
    assert_matches(ProcessSupervision(epsilon=0.0)(batch), [-z, -z, 0.0, 0.0, z])


def test_a_group_with_fewer_than_two_step_rewards_raises():
    batch = make_batch((2, 2), reward_mask=bools(False, True, False, False))
    with pytest.raises(ValueError, match=r"group 0 has 1 step reward"):
        ProcessSupervision()(batch)


# Leave-one-out per time step, normalised.


@given(grouped(), st.sampled_from([0.0, 0.9, 1.0]), st.data())
def test_timestep_leave_one_out_is_normalised_over_the_scored_steps(case, discount, data):
    lengths, group_ids, rewards = case
    out = data.draw(st.integers(0, len(lengths) - 1))
    alone = [group_ids.count(group) == 2 and group == group_ids[out] for group in group_ids]
    kept = [i for i in range(len(lengths)) if i != out and not alone[i]]
    scored = torch.arange(len(lengths)) != out
    found = TimestepLeaveOneOut(discount)(batch_of(case, scored=scored)).split(lengths)
    assert all(found[i].eq(0).all() for i in range(len(lengths)) if i not in kept)
    if kept:
        pieces = oracle.split(rewards, lengths)
        expected = oracle.timestep_leave_one_out_advantages(
            oracle.joined([pieces[i] for i in kept]), [lengths[i] for i in kept], [group_ids[i] for i in kept], discount
        )
        exact = oracle.timestep_leave_one_out_advantages(
            oracle.joined([pieces[i] for i in kept]),
            [lengths[i] for i in kept],
            [group_ids[i] for i in kept],
            discount,
            normalize=False,
        )
        if oracle.std(exact) > 1e-6:  # a spread of rounding errors alone is nothing to compare
            assert_matches(torch.cat([found[i] for i in kept]), expected)


def critic_batch(**fields):
    """Two episodes, the second one cut: rewards 1 to 3, values 0.5, 1.0 and -1.0, and 4.0 behind the cut."""
    return make_batch(
        (2, 1),
        values=torch.tensor([0.5, 1.0, -1.0]),
        final_values=torch.tensor([9.0, 4.0]),
        terminated=bools(True, False),
        **fields,
    )


def test_generalised_advantages_and_their_targets():
    # delta = r + 0.5 V' - V: 1 + 0.5 - 0.5, 2 + 0 - 1, 3 + 0.5 x 4 + 1; the sum goes on with 0.5 x 0.5.
    raw = [1.0 + 0.25 * 1.0, 1.0, 6.0]
    plain = GAE(discount=0.5, gae_lambda=0.5, normalize=False)
    assert plain(critic_batch()).tolist() == raw
    assert plain.returns(critic_batch()).tolist() == [raw[0] + 0.5, raw[1] + 1.0, raw[2] - 1.0]
    assert GAE(discount=0.5, gae_lambda=0.5).returns(critic_batch()).tolist() == [1.75, 2.0, 5.0]


@pytest.mark.parametrize(
    ("mask", "kept"), [(None, [0, 1, 2]), ((True, False, True), [0, 2]), ((True, False, False), [0])]
)
def test_generalised_advantages_are_centred_and_scaled_over_the_counted_steps(mask, kept):
    batch = critic_batch(loss_mask=None if mask is None else bools(*mask))
    raw = torch.tensor([1.25, 1.0, 6.0], dtype=torch.float64)
    std = raw[kept].std(correction=0)
    expected = (raw - raw[kept].mean()) / std if len(kept) > 1 else torch.zeros(3)
    found = GAE(discount=0.5, gae_lambda=0.5)(batch)
    torch.testing.assert_close(found, expected.float())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimestepLeaveOneOut(normalize="batch"), "^normalize is 'batch'"),
        (lambda: AnchorState(discount=1.5), "^discount is 1.5"),
        (lambda: RewardToGo(correction=2), "correction is 2"),
        (lambda: ProcessSupervision(correction=2), "correction is 2"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_settings_that_cannot_be_are_named_where_they_are_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("radius", "near"), [(0.9, False), (1.1, True)])
@pytest.mark.parametrize("unit", [0.25, 4.0])
def test_a_radius_is_in_standard_deviations_with_the_divisor_n(unit, radius, near):
    # States 0 and 1 (in any unit) have the standard deviation 1/2 with the divisor n, so they lie 2 apart.
    inputs = StepInputs(torch.tensor([[0.0, 7.0], [unit, 7.0]]), ints(0, 0))
    batch = make_batch((1, 1), rewards=[0.0, 1.0], inputs=inputs)
    term = AnchorState(radius=2 * radius)(batch) - GroupZScore()(batch)
    assert bool(term.any()) is near


def test_only_generalised_advantages_have_targets_for_a_critic():
    for estimator in ALL:
        assert hasattr(estimator, "returns") == isinstance(estimator, GAE)


def test_an_estimator_is_a_value():
    assert GroupZScore() == GroupZScore(epsilon=1e-4, correction=0, scale="group")
    assert TimestepLeaveOneOut() == TimestepLeaveOneOut(discount=0.99, normalize=True)
    assert ProcessSupervision() == ProcessSupervision(discount=1.0, epsilon=1e-4, correction=0)
    assert GAE() == GAE(discount=0.99, gae_lambda=0.95, normalize=True)
    assert len(set(ALL)) == len(ALL)
