import dataclasses
import math

import pytest
import torch
from helpers import bools, ints, make_batch, rows_of
from hypothesis import given
from hypothesis import strategies as st

from grpolib import EpisodeInputs, GroupBatch, MinibatchPlan, StepInputs, step_weights
from grpolib.batch import concatenate, select_groups

NAN, INF = math.nan, math.inf
REDUCTIONS = ("episode_mean", "step_mean", "constant")

lengths_lists = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@st.composite
def masked_lengths(draw):
    """(lengths, mask over their steps)."""
    lengths = draw(lengths_lists)
    return lengths, draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def minibatches(batch, reduction="step_mean", *, seed=0, max_length=None, returns=None, advantages=None, **plan):
    advantages = torch.arange(batch.num_steps) * 10.0 if advantages is None else advantages
    plan = MinibatchPlan(**plan)
    parts = batch.minibatches(advantages, reduction, plan, rng(seed), max_length=max_length, returns=returns)
    return list(parts)


# Step weights: what "mean" means.


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("episode_mean", [1 / 2, 1 / 6, 1 / 6, 1 / 6]),  # 1 / (2 x 1), then 1 / (2 x 3)
        ("step_mean", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("constant", [1 / 8, 1 / 8, 1 / 8, 1 / 8]),  # 1 / (2 x 4)
    ],
)
def test_weights_of_a_short_and_a_long_episode(reduction, expected):
    weights = step_weights(ints(1, 3), reduction, max_length=4)
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize(
    ("reduction", "loss", "gradients"),
    [
        # Advantages +1 on one step and -1 on three: -(1/2 - 3/6), -(1 - 3)/4, -(1 - 3)/8.
        ("episode_mean", 0.0, [-1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ("step_mean", 0.5, [-1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("constant", 0.25, [-1 / 8, 1 / 8, 1 / 8, 1 / 8]),
    ],
)
@pytest.mark.parametrize("by", ["step", "episode"])
def test_three_means_are_three_objectives(reduction, loss, gradients, by):
    batch = make_batch((1, 3))
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0])
    (part,) = minibatches(batch, reduction, advantages=advantages, epochs=1, size=None, by=by, max_length=4)
    log_probs = part.old_log_probs.clone().requires_grad_()
    surrogate = (log_probs - part.old_log_probs).exp() * part.advantages
    value = -(surrogate * part.weights).sum()
    value.backward()
    assert value.item() == pytest.approx(loss, abs=1e-7)
    expected = torch.tensor(gradients)[rows_of(part)]
    torch.testing.assert_close(log_probs.grad, expected)


@pytest.mark.parametrize(
    ("reduction", "mean"),
    [
        ("step_mean", 3.0),
        ("episode_mean", 3.0),  # the episode without a counted step leaves N
        ("constant", 1.5),  # it stays in N: (2 + 4) / (2 x 2)
    ],
)
def test_an_episode_without_a_counted_step(reduction, mean):
    mask = bools(True, True, False, False)
    weights = step_weights(ints(2, 2), reduction, loss_mask=mask, max_length=2)
    assert float((torch.tensor([2.0, 4.0, 100.0, 100.0]) * weights).sum()) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("episode_mean", [1 / 2, 0, 1 / 4, 0, 1 / 4]),  # counted lengths 1 and 2
        ("step_mean", [1 / 3, 0, 1 / 3, 0, 1 / 3]),
        ("constant", [1 / 10, 0, 1 / 10, 0, 1 / 10]),
    ],
)
def test_lengths_count_unmasked_steps(reduction, expected):
    mask = bools(True, False, True, False, True)
    weights = step_weights(ints(2, 3), reduction, loss_mask=mask, max_length=5)
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_are_zero_where_nothing_counts(reduction):
    weights = step_weights(ints(2, 1), reduction, loss_mask=bools(False, False, False), max_length=2)
    assert weights.tolist() == [0.0, 0.0, 0.0]


@given(masked_lengths())
def test_weights_agree_with_loops(case):
    lengths, mask = case
    counted, row = [], 0
    for length in lengths:
        counted.append(sum(mask[row : row + length]))
        row += length
    num_counted = sum(n > 0 for n in counted)
    expected = {name: [] for name in REDUCTIONS}
    row = 0
    for length, n in zip(lengths, counted, strict=True):
        for _ in range(length):
            on = mask[row]
            expected["episode_mean"].append(1 / (num_counted * n) if on else 0.0)
            expected["step_mean"].append(1 / sum(mask) if on else 0.0)
            expected["constant"].append(1 / (len(lengths) * 9) if on else 0.0)
            row += 1
    for reduction in REDUCTIONS:
        weights = step_weights(ints(*lengths), reduction, loss_mask=bools(*mask), max_length=9)
        torch.testing.assert_close(weights, torch.tensor(expected[reduction]))


@given(lengths_lists)
def test_means_sum_to_one_and_the_constant_never_above(lengths):
    for reduction in ("episode_mean", "step_mean"):
        assert float(step_weights(ints(*lengths), reduction).sum()) == pytest.approx(1.0)
    total = float(step_weights(ints(*lengths), "constant", max_length=9).sum())
    assert total == pytest.approx(sum(lengths) / (9 * len(lengths)))


def test_no_mask_is_a_mask_of_ones():
    for reduction in REDUCTIONS:
        plain = step_weights(ints(2, 3), reduction, max_length=7)
        masked = step_weights(ints(2, 3), reduction, loss_mask=torch.ones(5, dtype=torch.bool), max_length=7)
        assert torch.equal(plain, masked)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduction": "mean"}, r"'mean'.*episode_mean.*step_mean.*constant|episode_mean.*constant.*'mean'"),
        ({"reduction": "constant"}, r"max_length.*time limit"),
        ({"reduction": "step_mean", "loss_mask": bools(True, False)}, r"loss_mask.*\(2,\).*3 steps"),
    ],
)
def test_weights_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        step_weights(ints(1, 2), **arguments)


# Minibatches by step.


def test_every_row_comes_once_an_epoch_and_the_short_last_one_is_kept():
    parts = minibatches(make_batch((4, 1, 5)), epochs=3, size=4)
    assert [len(part.weights) for part in parts] == [4, 4, 2] * 3
    epochs = [[row for part in parts[k : k + 3] for row in rows_of(part)] for k in (0, 3, 6)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert all(epoch != list(range(10)) for epoch in epochs)


@pytest.mark.parametrize("by", ["step", "episode"])
def test_the_permutations_come_from_the_given_generator(by):
    batch = make_batch((1, 2, 1, 3, 1, 2))
    first, again, other = (minibatches(batch, seed=seed, epochs=2, size=3, by=by) for seed in (5, 5, 6))
    assert [rows_of(part) for part in first] == [rows_of(part) for part in again]
    assert [rows_of(part) for part in first] != [rows_of(part) for part in other]


@pytest.mark.parametrize("by", ["step", "episode"])
def test_every_field_goes_with_its_row(by):
    rows = torch.arange(6.0)
    batch = make_batch(
        (2, 1, 3), reference_log_probs=rows - 50, reference_parameters=torch.stack([rows, rows + 0.5], dim=1)
    )
    parts = minibatches(batch, returns=rows + 70, epochs=1, size=2, by=by)
    assert len(parts) > 1
    for part in parts:
        of_part = torch.tensor(rows_of(part), dtype=torch.float32)
        assert torch.equal(part.inputs.observations, of_part.unsqueeze(1))
        assert torch.equal(part.old_log_probs, -(of_part + 1))
        assert torch.equal(part.advantages, of_part * 10)
        assert torch.equal(part.reference_log_probs, of_part - 50)
        assert torch.equal(part.reference_parameters, torch.stack([of_part, of_part + 0.5], dim=1))
        assert torch.equal(part.returns, of_part + 70)


def test_fields_that_the_batch_lacks_stay_none():
    (part,) = minibatches(make_batch(), epochs=1, size=None)
    assert (part.reference_log_probs, part.reference_parameters, part.returns) == (None, None, None)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_by_step_are_those_of_the_whole_times_batch_over_minibatch(reduction):
    lengths = (4, 1, 5)
    whole = step_weights(ints(*lengths), reduction, max_length=8)
    parts = minibatches(make_batch(lengths), reduction, max_length=8, epochs=1, size=4)
    for part in parts:
        rows = rows_of(part)
        torch.testing.assert_close(part.weights, whole[rows] * 10 / len(rows))


@given(lengths_lists, st.integers(1, 12), st.sampled_from(REDUCTIONS), st.integers(0, 9))
def test_a_minibatch_by_step_is_an_unbiased_estimate_of_the_whole(lengths, size, reduction, seed):
    batch = make_batch(tuple(lengths))
    values = torch.arange(batch.num_steps, dtype=torch.float64) + 1
    whole = (values * step_weights(batch.lengths, reduction, max_length=9)).sum()
    parts = minibatches(batch, reduction, seed=seed, max_length=9, epochs=1, size=size)
    share = [len(part.weights) / batch.num_steps for part in parts]
    losses = [(values[rows_of(part)] * part.weights).sum() for part in parts]
    total = sum(s * loss for s, loss in zip(share, losses, strict=True))
    torch.testing.assert_close(total, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [None, 6, 100])
def test_one_minibatch_of_the_whole_has_the_whole_batch_s_weights(size):
    (part,) = minibatches(make_batch((2, 1, 3)), "episode_mean", epochs=1, size=size)
    whole = step_weights(ints(2, 1, 3), "episode_mean")
    assert sorted(rows_of(part)) == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(part.weights, whole[rows_of(part)])


def test_minibatches_by_step_have_no_episodes():
    assert all(part.lengths is None for part in minibatches(make_batch(), epochs=1, size=None, by="step"))


# Minibatches by episode.


def test_episodes_stay_whole_in_minibatches_by_episode():
    lengths = (2, 1, 3, 2, 4)
    starts = [0, 2, 3, 6, 8]
    parts = minibatches(make_batch(lengths), epochs=2, size=2, by="episode")
    assert [len(part.lengths) for part in parts] == [2, 2, 1] * 2
    orders = []
    for part in parts:
        rows, row = rows_of(part), 0
        for length in part.lengths.tolist():
            episode = starts.index(rows[row])
            assert lengths[episode] == length
            assert rows[row : row + length] == list(range(starts[episode], starts[episode] + length))
            orders.append(episode)
            row += length
        assert row == len(rows)
    assert sorted(orders[:5]) == sorted(orders[5:]) == [0, 1, 2, 3, 4]
    assert orders[:5] != orders[5:]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_weights_by_episode_are_those_of_the_minibatch_s_own_episodes(reduction, masked):
    mask = bools(*[row % 3 != 1 for row in range(12)])
    batch = make_batch((2, 1, 3, 2, 4), loss_mask=mask if masked else None)
    parts = minibatches(batch, reduction, max_length=8, epochs=1, size=2, by="episode")
    assert len(parts) == 3
    for part in parts:
        own = mask[rows_of(part)] if masked else None
        expected = step_weights(part.lengths, reduction, loss_mask=own, max_length=8)
        assert torch.equal(part.weights, expected)


@pytest.mark.parametrize("size", [None, 3, 9])
def test_all_episodes_fit_in_one_minibatch(size):
    (part,) = minibatches(make_batch((2, 1, 3)), "episode_mean", epochs=1, size=size, by="episode")
    assert sorted(part.lengths.tolist()) == [1, 2, 3]
    assert float(part.weights.sum()) == pytest.approx(1.0)


# What does not count.


@pytest.mark.parametrize("by", ["step", "episode"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_masked_steps_and_unscored_episodes_have_weight_zero(by, reduction):
    batch = make_batch((2, 2, 2), scored=bools(True, False, True), loss_mask=bools(True, False, True, True, True, True))
    (part,) = minibatches(batch, reduction, max_length=2, epochs=1, size=None, by=by)
    weights = dict(zip(rows_of(part), part.weights.tolist(), strict=True))
    assert [weights[row] > 0 for row in range(6)] == [True, False, False, False, True, True]
    # Counted lengths 1 and 2 in two episodes; three counted steps; N stays 3 for the constant.
    single = {"episode_mean": 1 / 2, "step_mean": 1 / 3, "constant": 1 / 6}[reduction]
    assert weights[0] == pytest.approx(single)


def test_masked_rows_are_counted_in_the_minibatch_size():
    # S / s with all rows counted: 4 / 2 times 1/2 for each of the two counted steps.
    batch = make_batch((4,), loss_mask=bools(True, True, False, False))
    for part in minibatches(batch, "step_mean", epochs=20, size=2):
        expected = [1.0 if row < 2 else 0.0 for row in rows_of(part)]
        torch.testing.assert_close(part.weights, torch.tensor(expected))


@pytest.mark.parametrize(("by", "size"), [("step", 1), ("episode", 1)])
def test_minibatches_in_which_nothing_counts_are_left_out(by, size):
    batch = make_batch((2, 1), scored=bools(False, True))
    parts = minibatches(batch, "episode_mean", epochs=3, size=size, by=by)
    assert [rows_of(part) for part in parts] == [[2], [2], [2]]
    assert all(part.weights.any() for part in parts)


@pytest.mark.parametrize("by", ["step", "episode"])
def test_a_batch_in_which_nothing_counts_has_no_minibatches(by):
    assert minibatches(make_batch(scored=bools(False, False, False)), epochs=2, size=2, by=by) == []


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("shape", [(6, 1), (5,), ()])
def test_advantages_and_returns_need_one_value_a_step(shape):
    batch = make_batch((2, 1, 3))
    with pytest.raises(ValueError, match=r"advantages have shape .*6 steps.*one advantage per step"):
        minibatches(batch, advantages=torch.ones(shape))
    with pytest.raises(ValueError, match=r"returns .*shape .*6"):
        minibatches(batch, returns=torch.ones(shape))


@pytest.mark.parametrize(
    ("values", "kind"), [(torch.ones(6, dtype=torch.long), "torch.int64"), ([1.0] * 6, "list"), (None, "NoneType")]
)
@pytest.mark.usefixtures("without_shape_hook")
def test_what_is_no_tensor_of_floats_is_named(values, kind):
    batch = make_batch((2, 1, 3))
    with pytest.raises(TypeError, match=f"^advantages are {kind}: an estimator gives a tensor of floating-point"):
        list(batch.minibatches(values, "step_mean", MinibatchPlan(), rng()))


def test_an_advantage_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match=r"^advantages nan at step 1 of member 0 of group 0"):
        minibatches(make_batch((2, 1)), advantages=torch.tensor([0.0, NAN, 0.0]))


def test_a_batch_as_one_minibatch_has_its_episodes():
    batch, one = make_batch((2, 1)), torch.ones(3)
    assert batch.as_minibatch(one, one, None).lengths is batch.lengths


def test_the_default_plan_is_the_published_one():
    assert MinibatchPlan() == MinibatchPlan(epochs=4, size=64, by="step")


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"size": 0}, "size=0"),
        ({"size": -3}, "size=-3"),
        ({"size": 2.5}, "size is 2.5"),
        ({"epochs": True}, "epochs is True"),
        ({"by": "group"}, "'step' or 'episode'.*'group'"),
    ],
)
def test_plans_that_cannot_be(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MinibatchPlan(**arguments)


# The batch: what it refuses.


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": torch.ones(6, 1)}, r"rewards .*\(6, 1\).*\(6,\)"),
        ({"log_probs": torch.zeros(6, 1)}, r"log_probs .*\(6, 1\).*\(6,\)"),
        ({"log_probs": torch.zeros(5)}, r"log_probs .*\(5,\).*\(6,\)"),
        ({"rewards": torch.ones(7)}, r"rewards .*\(7,\).*\(6,\).*lengths sum to"),
        ({"loss_mask": bools(True)}, r"loss_mask .*\(1,\).*\(6,\)"),
        ({"reward_mask": torch.ones(6, 1, dtype=torch.bool)}, r"reward_mask .*\(6, 1\)"),
        ({"reference_log_probs": torch.zeros(6, 1)}, r"reference_log_probs .*\(6, 1\)"),
        ({"penalties": torch.zeros(3)}, r"penalties .*\(3,\).*\(6,\)"),
        ({"reward_factors": torch.ones(3)}, r"reward_factors .*\(3,\).*\(6,\)"),
        ({"values": torch.zeros(6, 1)}, r"values .*\(6, 1\)"),
        ({"group_ids": ints(0, 0)}, r"group_ids .*\(2,\).*\(3,\)"),
        ({"terminated": bools(True)}, r"terminated .*\(1,\).*\(3,\)"),
        ({"scored": bools(True, True)}, r"scored .*\(2,\).*\(3,\)"),
        ({"final_values": torch.zeros(3, 1)}, r"final_values .*\(3, 1\).*\(3,\)"),
        ({"first_timesteps": ints(0)}, r"first_timesteps .*\(1,\).*\(3,\)"),
        ({"inputs": StepInputs(torch.zeros(5, 1), torch.zeros(5))}, r"inputs have 5 rows.*6 steps"),
        ({"lengths": ints(2, 0, 4)}, r"episode 1 has 0 steps.*>= 1"),
        ({"lengths": ints(2, -1, 5)}, r"episode 1 has -1 steps"),
        ({"lengths": ints()}, r"lengths have shape \(0,\).*at least one episode"),
        ({"lengths": torch.tensor([[2, 1, 3]])}, r"lengths have shape \(1, 3\)"),
        ({"group_ids": ints(0, 1, 0)}, r"group_ids must count 0, 1, .*sorted.*\[0, 1, 0\]"),
        ({"group_ids": ints(0, 0, 2)}, r"group_ids.*without gaps.*\[0, 0, 2\]"),
        ({"group_ids": ints(1, 1, 2)}, r"group_ids.*\[1, 1, 2\]"),
        ({"group_ids": ints(0, -1, 0)}, r"group_ids.*\[0, -1, 0\]"),
    ],
)
def test_batches_that_do_not_fit_together(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_batch((2, 1, 3)), **changes)


@pytest.mark.usefixtures("without_shape_hook")
def test_final_inputs_need_one_row_an_episode():
    with pytest.raises(ValueError, match=r"final_inputs .*3"):
        make_batch((2, 1, 3), final_inputs=torch.zeros(6, 4))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(("name", "word"), [("rewards", "reward"), ("log_probs", "log-probability")])
def test_what_is_not_finite_is_named(value, name, word):
    # Row 6 is step 2 of the fourth episode, member 1 of group 1.
    values = torch.ones(7)
    values[6] = value
    with pytest.raises(ValueError, match=rf"{word} {value} at step 2 of member 1 of group 1.*scored=False"):
        make_batch((2, 1, 1, 3), group_ids=(0, 0, 1, 1), **{name: values})


@pytest.mark.parametrize("name", ["rewards", "log_probs"])
def test_an_unscored_episode_may_hold_anything(name):
    values = torch.tensor([NAN, INF, 1.0])
    batch = make_batch((2, 1), scored=bools(False, True), **{name: values})
    assert batch.num_steps == 3
    with pytest.raises(ValueError, match="step 0 of member 1"):
        make_batch((2, 1), scored=bools(False, True), **{name: torch.tensor([1.0, 1.0, NAN])})


def test_a_log_probability_that_the_loss_leaves_out_may_be_anything():
    batch = make_batch((2, 1), loss_mask=bools(False, True, True), log_probs=torch.tensor([-INF, -1.0, -1.0]))
    assert batch.num_steps == 3
    with pytest.raises(ValueError, match="log-probability -inf at step 1"):
        make_batch((2, 1), loss_mask=bools(False, True, True), log_probs=torch.tensor([-1.0, -INF, -1.0]))


@pytest.mark.parametrize("scored", [None, bools(True, True)])
def test_a_reward_counts_also_where_the_loss_leaves_its_step_out(scored):
    # It is part of its episode's return, whatever the mask of the loss says.
    with pytest.raises(ValueError, match="reward nan at step 0 of member 0"):
        make_batch((2, 1), scored=scored, loss_mask=bools(False, True, True), rewards=torch.tensor([NAN, 1.0, 1.0]))


def test_a_batch_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_batch().rewards = torch.zeros(6)


# The batch: what it derives.


@given(lengths_lists, st.integers(1, 3))
def test_derived_fields_agree_with_loops(lengths, members):
    group_ids = [episode // members for episode in range(len(lengths))]
    batch = make_batch(tuple(lengths), group_ids=group_ids)
    offsets, episode_ids, timesteps, returns, row = [0], [], [], [], 0
    for episode, length in enumerate(lengths):
        total = 0.0
        for t in range(length):
            episode_ids.append(episode)
            timesteps.append(t)
            row += 1
            total += row  # the reward of row t is t + 1
        offsets.append(row)
        returns.append(total)
    assert batch.offsets.tolist() == offsets
    assert batch.episode_ids.tolist() == episode_ids
    assert batch.timesteps.tolist() == timesteps
    assert batch.episode_returns.tolist() == returns
    assert (batch.num_steps, batch.num_episodes, batch.num_groups) == (row, len(lengths), group_ids[-1] + 1)


@given(lengths_lists.filter(lambda lengths: len(lengths) > 1), st.integers(0, 10_000))
def test_an_episode_s_return_has_the_same_bits_alone_and_in_any_batch(lengths, seed):
    rewards = torch.randn(sum(lengths), generator=rng(seed)) * 1e3
    together = make_batch(tuple(lengths), rewards=rewards).episode_returns
    for episode, part in enumerate(rewards.split(lengths)):
        alone = make_batch((len(part),), rewards=part).episode_returns
        assert torch.equal(alone, together[episode : episode + 1])


def test_returns_read_rewards_not_penalties():
    batch = make_batch((2, 1), rewards=torch.tensor([1.0, 2.0, 5.0]), penalties=torch.ones(3))
    assert batch.episode_returns.tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("scored", "loss_mask", "counted"),
    [
        (None, None, None),
        (bools(True, False), None, [True, True, False]),
        (None, bools(True, False, True), [True, False, True]),
        (bools(True, False), bools(False, True, True), [False, True, False]),
    ],
)
def test_counted_steps_are_unmasked_and_of_a_scored_episode(scored, loss_mask, counted):
    found = make_batch((2, 1), scored=scored, loss_mask=loss_mask).counted
    assert (found if found is None else found.tolist()) == counted


def test_steps_of_episodes_in_any_order():
    assert make_batch((2, 1, 3)).steps_of(ints(2, 0)).tolist() == [3, 4, 5, 0, 1]


def test_a_batch_that_is_on_the_device_already_is_not_copied():
    batch = make_batch()
    assert batch.to(torch.device("cpu")) is batch


def every_field(count, steps, **fields):
    """One tensor in every field of a batch that may hold one."""
    return {
        "final_inputs": torch.arange(2.0 * count).view(count, 2),
        "loss_mask": torch.arange(steps) % 2 == 0,
        "scored": torch.arange(count) % 3 != 1,
        "reward_mask": torch.arange(steps) % 3 == 0,
        "reference_log_probs": -torch.arange(1.0, steps + 1),
        "reference_parameters": torch.arange(2.0 * steps).view(steps, 2),
        "penalties": torch.arange(0.0, steps),
        "reward_factors": torch.arange(2.0, steps + 2),
        "values": torch.arange(3.0, steps + 3),
        "final_values": torch.arange(4.0, count + 4),
        "first_timesteps": torch.arange(count) % 2,
        **fields,
    }


def test_a_batch_moves_with_all_that_it_holds(monkeypatch):
    # "meta" is a device that is there everywhere and holds shapes alone: no values to check.
    meta = torch.device("meta")
    monkeypatch.setattr(GroupBatch, "__post_init__", lambda batch: None)
    batch = make_batch((2, 1, 3), **every_field(3, 6), metrics={"seen": ints(1, 2)})
    moved = batch.to(meta)
    for name, value in vars(moved).items():
        if isinstance(value, torch.Tensor):
            assert value.device == meta, name
            assert value.shape == getattr(batch, name).shape
    assert moved.inputs.observations.device == moved.inputs.actions.device == meta
    assert moved.final_inputs.shape == (3, 2)
    assert moved.metrics["seen"] is batch.metrics["seen"]
    assert make_batch().to(meta).final_inputs is None


def test_groups_are_taken_in_the_order_asked_for_with_all_that_is_theirs():
    batch = make_batch((1, 2, 3, 1), group_ids=(0, 1, 1, 2), **every_field(4, 7), metrics={"seen": ints(1)})
    taken = select_groups(batch, ints(2, 1))
    episodes, steps = ints(3, 1, 2), ints(6, 1, 2, 3, 4, 5)
    assert taken.group_ids.tolist() == [0, 1, 1]
    assert taken.lengths.tolist() == [1, 2, 3]
    assert rows_of(taken) == steps.tolist()
    assert taken.metrics is batch.metrics
    per_episode = {"final_inputs", "scored", "final_values", "first_timesteps", "terminated"}
    for name in {*every_field(4, 7), "log_probs", "rewards", "terminated"}:
        rows = episodes if name in per_episode else steps
        assert torch.equal(getattr(taken, name), getattr(batch, name)[rows]), name


def test_groups_of_a_batch_without_more():
    taken = select_groups(make_batch((1, 2), group_ids=(0, 1)), ints(1))
    assert (rows_of(taken), taken.group_ids.tolist()) == ([1, 2], [0])
    assert taken.final_inputs is taken.values is taken.scored is taken.reference_parameters is None


# Joining batches.


def test_joined_batches_go_on_counting_groups():
    first = make_batch((2, 1, 1), group_ids=(0, 0, 1), metrics={"seen": ints(1, 2)})
    second = make_batch((1, 3), group_ids=(0, 1), metrics={"seen": ints(3)})
    third = make_batch((1,), metrics={"seen": ints()})
    joined = concatenate([first, second, third])
    assert joined.group_ids.tolist() == [0, 0, 1, 2, 3, 4]
    assert joined.lengths.tolist() == [2, 1, 1, 1, 3, 1]
    assert joined.rewards.tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert joined.inputs.actions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert joined.metrics["seen"].tolist() == [1, 2, 3]


def test_joining_keeps_every_field():
    fields = {
        "final_inputs": torch.ones(3, 2),
        "loss_mask": bools(True, False, True, True, True, True),
        "scored": bools(True, True, False),
        "reward_mask": bools(True, True, True, True, True, False),
        "reference_log_probs": torch.ones(6),
        "reference_parameters": torch.ones(6, 4),
        "penalties": torch.ones(6),
        "reward_factors": torch.ones(6),
        "values": torch.ones(6),
        "final_values": torch.ones(3),
        "first_timesteps": ints(1, 0, 0),
    }
    batch = make_batch((2, 1, 3), **fields)
    joined = concatenate([batch, batch])
    for name, value in fields.items():
        assert torch.equal(getattr(joined, name), torch.cat([value, value])), name
    known = {f.name for f in dataclasses.fields(GroupBatch)}
    assert known == {*fields, "inputs", "log_probs", "rewards", "lengths", "group_ids", "terminated", "metrics"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_field_that_only_one_batch_has_is_not_dropped_in_silence(order):
    batches = [make_batch((2, 1)), make_batch((2, 1), scored=bools(True, False))][::order]
    with pytest.raises(ValueError, match="scored"):
        concatenate(batches)


# Inputs.


def test_inputs_select_and_join_rows():
    inputs = StepInputs(torch.arange(4.0).unsqueeze(1), ints(0, 1, 2, 3))
    picked = inputs.select_steps(ints(3, 1))
    assert picked.observations.tolist() == [[3.0], [1.0]]
    assert picked.actions.tolist() == [3, 1]
    whole = inputs.select_episodes(ints(1), ints(2, 3))
    assert whole.actions.tolist() == [2, 3]
    joined = picked.concatenate([whole, inputs])
    assert joined.actions.tolist() == [3, 1, 2, 3, 0, 1, 2, 3]
    assert joined.observations.squeeze(1).tolist() == [3, 1, 2, 3, 0, 1, 2, 3]
    assert len(joined) == 8


@pytest.mark.usefixtures("without_shape_hook")
def test_inputs_need_as_many_actions_as_observations():
    with pytest.raises(ValueError, match="3 observations and 2 actions"):
        StepInputs(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(ValueError, match="3 observations and 2 actions"):
        EpisodeInputs(torch.zeros(3, 1), torch.zeros(2), ints(2), torch.zeros(1, 4))


def recurrent_inputs():
    """Episodes of two, one and three steps: observation [t], action t, and ten times the episode's number as state."""
    states = torch.tensor([[0.0, 0.0], [10.0, 10.0], [20.0, 20.0]])
    return EpisodeInputs(torch.arange(6.0).unsqueeze(1), torch.arange(6), ints(2, 1, 3), states)


def test_inputs_of_whole_episodes_select_and_join_with_their_states():
    inputs = recurrent_inputs()
    assert len(inputs) == 6
    picked = inputs.select_episodes(ints(2, 0), ints(3, 4, 5, 0, 1))
    joined = picked.concatenate([inputs])
    assert (len(picked), len(joined)) == (5, 11)
    assert picked.lengths.tolist() == [3, 2]
    assert picked.states.tolist() == [[20, 20], [0, 0]]
    assert joined.actions.tolist() == joined.observations.squeeze(1).tolist() == [3, 4, 5, 0, 1, 0, 1, 2, 3, 4, 5]
    assert joined.lengths.tolist() == [3, 2, 2, 1, 3]
    assert joined.states[:, 0].tolist() == [20, 0, 0, 10, 20]


def test_inputs_move_to_a_device():
    meta = torch.device("meta")
    for inputs in (recurrent_inputs(), StepInputs(torch.zeros(3, 2), torch.zeros(3))):
        for name, value in vars(inputs.to(meta)).items():
            assert (value.device, value.shape) == (meta, getattr(inputs, name).shape), name
