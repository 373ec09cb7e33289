import math

import pytest
import reference as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import FLOAT_DTYPES, assert_matches, f64, grouped_episodes, ints

from grpolib.functional import anchor_state_advantages, anchors


def loop_anchor_state_advantages(scores, states, lengths, group_ids, radius):
    """GiGPO section 4.2 with a radius in place of equality, the own episode left out."""
    episode_of = [i for i, length in enumerate(lengths) for _ in range(length)]
    advantages = []
    for row, own in enumerate(episode_of):
        near = [
            scores[other]
            for other, episode in enumerate(episode_of)
            if episode != own
            and group_ids[episode] == group_ids[own]
            and math.dist(states[other], states[row]) <= radius
        ]
        advantages.append(scores[row] - oracle.mean(near) if near else 0.0)
    return advantages


@st.composite
def walks(draw):
    """(scores, states, lengths, group_ids); states on a grid, so that many are equal and no distance is a near miss."""
    scores, lengths, group_ids = draw(grouped_episodes())
    place = st.tuples(st.integers(-2, 2), st.integers(-2, 2))
    states = draw(st.lists(place, min_size=len(scores), max_size=len(scores)))
    return scores, [(float(x), float(y)) for x, y in states], lengths, group_ids


def tensors(case):
    scores, states, lengths, group_ids = case
    return f64(scores), f64(states), ints(lengths), ints(group_ids)


def test_two_episodes_that_meet_once():
    # Episode 0 visits 0, 1, 2 and episode 1 visits 1, 9. Only state 1 is shared, with scores 3 and 5.
    scores, states = f64([7.0, 3.0, 1.0, 5.0, 4.0]), f64([[0.0], [1.0], [2.0], [1.0], [9.0]])
    advantages = anchor_state_advantages(scores, states, ints([3, 2]), ints([0, 0]), radius=0.0)
    assert_matches(advantages, [0.0, -2.0, 0.0, 2.0, 0.0])


def test_a_radius_reaches_to_its_border():
    # From 1, radius 1 reaches 0 and 2 but not 3: 10 - (2 + 4)/2. From 0 and from 2 it reaches 1; from 3 nothing.
    scores, states = f64([10.0, 2.0, 4.0, 6.0]), f64([[1.0], [0.0], [2.0], [3.0]])
    advantages = anchor_state_advantages(scores, states, ints([1, 3]), ints([0, 0]), radius=1.0)
    assert_matches(advantages, [7.0, -8.0, -6.0, 0.0])


def test_the_own_episode_is_no_anchor():
    # Both steps of episode 0 are in the same state, and no other episode comes there.
    scores, states = f64([5.0, 1.0, 3.0]), f64([[0.0], [0.0], [9.0]])
    advantages = anchor_state_advantages(scores, states, ints([2, 1]), ints([0, 0]), radius=1.0)
    assert advantages.tolist() == [0.0, 0.0, 0.0]


def test_groups_do_not_meet():
    scores, states = f64([5.0, 1.0, 3.0, 3.5]), f64([[0.0]] * 4)
    advantages = anchor_state_advantages(scores, states, ints([1] * 4), ints([8, 2, 8, 2]), radius=1.0)
    assert_matches(advantages, [2.0, -2.5, -2.0, 2.5])


@given(walks(), st.sampled_from([0.0, 0.5, 1.1, 1.5, 2.1, 9.0]))
def test_anchors_agree_with_a_loop(case, radius):
    advantages = anchor_state_advantages(*tensors(case), radius=radius)
    assert_matches(advantages, loop_anchor_state_advantages(*case, radius))


@given(walks())
def test_a_huge_radius_compares_with_all_steps_of_the_other_episodes(case):
    scores, _, lengths, group_ids = case
    episodes = oracle.split(scores, lengths)
    expected = []
    for i, own in enumerate(episodes):
        others = oracle.joined([episodes[j] for j in oracle.members(group_ids, group_ids[i]) if j != i])
        expected += [score - oracle.mean(others) for score in own]
    for radius in (1e6, math.inf):
        assert_matches(anchor_state_advantages(*tensors(case), radius=radius), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [5, 30, 300])
def test_radius_zero_finds_every_equal_state(dtype, steps):
    # Two episodes visit the same irrational states, with scores 1 and 0: ±1 on every step, however many there are.
    states = torch.randn(steps, 3, generator=torch.Generator().manual_seed(0)).to(dtype) * 10
    scores = torch.cat([torch.ones(steps), torch.zeros(steps)])
    advantages = anchor_state_advantages(
        scores, torch.cat([states, states]), ints([steps, steps]), ints([0, 0]), radius=0.0
    )
    assert advantages.tolist() == [1.0] * steps + [-1.0] * steps


def test_small_distances_between_large_states():
    # 1000 + k/1024: the neighbours of every state lie exactly 1/1024 away, and a radius half of that reaches none.
    steps = 40
    first = 1000 + torch.arange(steps).unsqueeze(1) / 1024
    second = first + 1 / 2048
    scores = torch.cat([torch.ones(steps), torch.zeros(steps)])
    lengths, group_ids = ints([steps, steps]), ints([0, 0])
    for radius, found in ((1 / 4096, 0.0), (1 / 2048, 1.0)):
        advantages = anchor_state_advantages(scores, torch.cat([first, second]), lengths, group_ids, radius=radius)
        assert advantages.tolist() == [found] * steps + [-found] * steps


def test_rows_are_taken_in_parts(monkeypatch):
    rng = torch.Generator().manual_seed(1)
    states, scores = torch.randn(50, 2, generator=rng), torch.randn(50, generator=rng)
    arguments = scores, states, ints([7, 13, 20, 10]), ints([0, 1, 0, 1])
    whole = anchor_state_advantages(*arguments, radius=0.7)
    assert whole.any()
    monkeypatch.setattr(anchors, "ROWS_AT_A_TIME", 3)
    torch.testing.assert_close(anchor_state_advantages(*arguments, radius=0.7), whole, rtol=1e-12, atol=1e-12)


@given(walks(), st.randoms(use_true_random=False))
def test_the_order_of_the_episodes_does_not_matter(case, random):
    scores, states, lengths, group_ids = case
    order = list(range(len(lengths)))
    random.shuffle(order)
    pieces = oracle.split(scores, lengths), oracle.split(states, lengths)
    shuffled = [oracle.joined([piece[i] for i in order]) for piece in pieces]
    sizes, ids = [lengths[i] for i in order], [group_ids[i] for i in order]
    moved = anchor_state_advantages(*tensors((*shuffled, sizes, ids)), radius=1.1).tolist()
    still = oracle.split(anchor_state_advantages(*tensors(case), radius=1.1).tolist(), lengths)
    assert moved == pytest.approx(oracle.joined([still[i] for i in order]), abs=1e-9)


@pytest.mark.parametrize("score", [0.3, 1 / 3, 1e7])
def test_equal_scores_are_exactly_zero(score):
    scores, states = torch.full((12,), score), torch.zeros(12, 1)
    advantages = anchor_state_advantages(scores, states, ints([4, 4, 4]), ints([0, 0, 0]), radius=1.0)
    assert advantages.tolist() == [0.0] * 12


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_results_are_float32_or_wider(dtype):
    scores = torch.tensor([1.0, 3.0], dtype=dtype)
    advantages = anchor_state_advantages(scores, torch.zeros(2, 1), ints([1, 1]), ints([0, 0]), radius=0.0)
    assert advantages.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert advantages.tolist() == [-2.0, 2.0]


def test_results_carry_no_gradient():
    scores, states = f64([1.0, 3.0]).requires_grad_(), f64([[0.0], [0.0]]).requires_grad_()
    assert not anchor_state_advantages(scores, states, ints([1, 1]), ints([0, 0]), radius=0.0).requires_grad


@pytest.mark.parametrize("radius", [-0.1, math.nan])
def test_a_radius_below_zero_raises(radius):
    with pytest.raises(ValueError, match=f"radius is {radius}"):
        anchor_state_advantages(torch.ones(2), torch.zeros(2, 1), ints([1, 1]), ints([0, 0]), radius=radius)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("scores", "states", "lengths", "group_ids", "message"),
    [
        (torch.ones(3), torch.zeros(3, 1), [1, 1], [0, 0], "scores has shape"),
        (torch.ones(2, 1), torch.zeros(2, 1), [1, 1], [0, 0], "scores has shape"),
        (torch.ones(2), torch.zeros(3, 1), [1, 1], [0, 0], "states has shape"),
        (torch.ones(2), torch.zeros(2), [1, 1], [0, 0], "states has shape"),
        (torch.ones(2), torch.zeros(2, 1), [1, 1], [0], "group_ids has shape"),
        (torch.ones(2), torch.zeros(2, 1), [0, 2], [0, 0], "lengths"),
    ],
)
def test_shapes_that_do_not_fit_raise(scores, states, lengths, group_ids, message):
    with pytest.raises(ValueError, match=message):
        anchor_state_advantages(scores, states, ints(lengths), ints(group_ids), radius=1.0)
