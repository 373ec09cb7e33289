"""Segments of a fixed number of steps: where they are cut, what they remember, and on what their bits depend."""

import math
import random

import gymnasium
import numpy as np
import pytest
import torch
from environments import ActionEater, Counting, GivesReward, Lifting, NumpyScalars, Pixels, Quitting, SameArray, Sent
from helpers import Constant, Gives, global_generators_untouched

from grpolib import (
    AnchorState,
    GroupZScore,
    LeaveOneOut,
    ProcessSupervision,
    RewardToGo,
    Sampler,
    StepSampler,
    TimestepLeaveOneOut,
    as_policy,
    mlp,
)
from grpolib.sampling.protocols import group_seed


def seed_of(iteration=1, trainer_seed=0):
    return np.random.SeedSequence(trainer_seed, spawn_key=(iteration,))


def coin():
    """Both actions alike, whatever the observation."""
    return as_policy(Constant(0.0, 0.0), Counting.action_space)


def samples(env, num_envs, steps, *, iterations=(1,), policy=None, **keywords):
    """One batch per iteration from the same sampler."""
    sampler = StepSampler(env, num_envs, steps)
    policy = policy or coin()
    batches = [sampler.sample(policy, num_envs, seed_of(k), **keywords) for k in iterations]
    sampler.close()
    return batches


def sample(env, num_envs, steps, **keywords):
    (batch,) = samples(env, num_envs, steps, **keywords)
    return batch


class Watched:
    """A factory of environments that keep what they are sent; `used` are those that an episode ran in."""

    def __init__(self, factory):
        self.factory, self.made = factory, []

    def __call__(self):
        self.made.append(Sent(self.factory()))
        return self.made[-1]

    @property
    def used(self):
        return [env for env in self.made if any(env.episodes)]


def times(observations):
    """What `Counting` observes: the steps taken in the true episode."""
    return observations[:, 1].tolist()


def segments_of(batch):
    """(observed times, final time, terminated) of each segment."""
    parts = batch.inputs.observations.split(batch.lengths.tolist())
    finals = times(batch.final_inputs)
    return [
        (times(part), final, end) for part, final, end in zip(parts, finals, batch.terminated.tolist(), strict=True)
    ]


def assert_same(first, second):
    for name in ("log_probs", "rewards", "lengths", "terminated", "final_inputs", "first_timesteps"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.inputs.observations, second.inputs.observations)
    assert torch.equal(first.inputs.actions, second.inputs.actions)


# Where a segment ends.


@pytest.mark.parametrize("env", [Counting, lambda: gymnasium.wrappers.Autoreset(Counting())])
def test_eight_steps_of_an_environment_that_ends_at_three(env):
    # Also where it would reset itself: the eighth step is none that an environment only took to do so.
    batch = sample(env, 1, 8)
    assert segments_of(batch) == [([0, 1, 2], 3, True), ([0, 1, 2], 3, True), ([0, 1], 2, False)]
    assert batch.rewards.tolist() == [1.0] * 8
    assert batch.episode_returns.tolist() == [3.0, 3.0, 2.0]
    assert batch.first_timesteps.tolist() == [0, 0, 0]
    # No transition leads to a reset observation: every next observation is one step further.
    lasts = batch.offsets[1:] - 1
    after = torch.cat([batch.inputs.observations[1:], torch.zeros(1, 2)])
    after[lasts] = batch.final_inputs
    assert times(after) == [time + 1 for time in times(batch.inputs.observations)]


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("mode", gymnasium.vector.AutoresetMode)
def test_a_vector_environment_is_refused_whatever_its_way_to_reset(mode):
    with pytest.raises(TypeError, match="resets its members on its own"):
        StepSampler(lambda: gymnasium.vector.SyncVectorEnv([Counting] * 2, autoreset_mode=mode), 2, 8)


def test_the_context_of_an_episode_stays_with_its_segment():
    batch = sample(Counting, 2, 9)
    contexts = [part[:, 0] for part in batch.inputs.observations.split(batch.lengths.tolist())]
    for part, final in zip(contexts, batch.final_inputs[:, 0], strict=True):
        assert part.eq(final).all()
    assert len({float(part[0]) for part in contexts}) == len(contexts)


@pytest.mark.parametrize(
    ("options", "terminated"),
    [
        ({"terminates": True}, True),
        ({"terminates": False, "truncates": True}, False),
        ({"terminates": True, "truncates": True}, True),
    ],
)
def test_a_time_limit_is_no_end_but_starts_a_new_episode(options, terminated):
    batch = sample(lambda: Counting(3, **options), 1, 6)
    assert segments_of(batch) == [([0, 1, 2], 3, terminated)] * 2


def test_gymnasium_s_own_time_limit_cuts():
    batch = sample(lambda: gymnasium.wrappers.TimeLimit(Counting(100), 4), 1, 6)
    assert segments_of(batch) == [([0, 1, 2, 3], 4, False), ([0, 1], 2, False)]


def test_an_episode_that_ends_with_the_rollout_leaves_no_stump():
    first, second = samples(Counting, 1, 3, iterations=(1, 2))
    assert segments_of(first) == segments_of(second) == [([0, 1, 2], 3, True)]
    assert second.first_timesteps.tolist() == [0]


def test_single_steps():
    first, second, third, fourth = samples(Counting, 1, 1, iterations=(1, 2, 3, 4))
    assert segments_of(first) == [([0], 1, False)]
    assert segments_of(second) == [([1], 2, False)]
    assert segments_of(third) == [([2], 3, True)]
    assert segments_of(fourth) == [([0], 1, False)]
    assert [batch.first_timesteps.tolist() for batch in (first, second, third, fourth)] == [[0], [1], [2], [0]]


def test_rows_are_sorted_by_environment_and_time():
    batch = sample([lambda k=k: Counting(k) for k in (2, 3, 9)], 3, 4)
    assert batch.lengths.tolist() == [2, 2, 3, 1, 4]
    assert times(batch.inputs.observations) == [0, 1, 0, 1, 0, 1, 2, 0, 0, 1, 2, 3]
    assert batch.terminated.tolist() == [True, True, True, False, False]
    assert batch.group_ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_real_episodes_replay_exactly(env):
    space = gymnasium.make(env).unwrapped
    width, outputs = space.observation_space.shape[0], 2
    watched = Watched(lambda: gymnasium.make(env))
    policy = as_policy(mlp(width, 16, outputs, seed=3), space.action_space)
    batches = samples(watched, 2, 60, iterations=(1, 2, 3, 4), policy=policy)
    for member in range(2):
        # All that this environment gave, over the four samples, in order.
        rows = [(batch.inputs.observations.split(60)[member], batch.rewards.split(60)[member]) for batch in batches]
        observations = torch.cat([observation for observation, _ in rows])
        rewards = torch.cat([reward for _, reward in rows])
        row, fresh = 0, gymnasium.make(env)
        for seed, actions in zip(watched.used[member].seeds, watched.used[member].episodes, strict=True):
            observation, _ = fresh.reset(seed=seed)
            for action in actions:
                np.testing.assert_array_equal(observations[row].numpy(), observation.astype(np.float32))
                observation, reward, *_ = fresh.step(action)
                assert rewards[row].item() == np.float32(reward)
                row += 1
        assert row == 240


def test_cartpole_ends_where_the_pole_falls():
    batch = sample("CartPole-v1", 4, 200)
    assert batch.num_steps == 800
    angle, place = batch.final_inputs[:, 2].abs(), batch.final_inputs[:, 0].abs()
    fallen = (angle > 12 * math.pi / 180) | (place > 2.4)
    assert torch.equal(fallen, batch.terminated)
    inside = batch.inputs.observations
    assert not ((inside[:, 2].abs() > 12 * math.pi / 180) | (inside[:, 0].abs() > 2.4)).any()
    assert batch.terminated.sum() > 10
    # Four environments, and the last segment of each is cut by the rollout's end or ends there by itself.
    assert (~batch.terminated).sum() <= 4


# Episodes go on in the next sample.


def test_two_samples_are_one_of_double_length():
    lengths = (3, 5, 7, 4)
    env = [lambda k=k: Counting(k) for k in lengths]
    first, second = samples(env, 4, 6, iterations=(1, 2))
    whole = sample(env, 4, 12)
    for member, length in enumerate(lengths):
        halves = [times(part.inputs.observations.split(6)[member]) for part in (first, second)]
        assert halves[0] + halves[1] == times(whole.inputs.observations.split(12)[member])
        assert halves[0] + halves[1] == [t % length for t in range(12)]
    # A segment at the start of a sample goes on where the last one stopped; all others start an episode.
    assert first.first_timesteps.tolist() == [0] * first.num_episodes
    observed = second.inputs.observations[second.offsets[:-1]]
    assert second.first_timesteps.tolist() == times(observed)
    assert second.first_timesteps.tolist() == [0, 0, 1, 0, 6, 0, 2, 0]
    # What was cut and what goes on is one and the same state.
    cut = first.final_inputs[~first.terminated]
    goes_on = observed[second.first_timesteps > 0]
    assert torch.equal(cut, goes_on)


def test_the_true_episodes_have_their_true_length():
    # 5 steps an episode in rollouts of 3: cut lengths 3, then 2 + 1, then 3, then 1 + 2.
    batches = samples(lambda: Counting(5), 1, 3, iterations=(1, 2, 3, 4))
    assert [batch.lengths.tolist() for batch in batches] == [[3], [2, 1], [3], [1, 2]]
    assert [batch.terminated.tolist() for batch in batches] == [[False], [True, False], [False], [True, False]]
    assert [batch.first_timesteps.tolist() for batch in batches] == [[0], [3, 0], [1], [4, 0]]


def test_an_environment_is_reset_once_an_episode():
    watched = Watched(lambda: Counting(5))
    samples(watched, 2, 3, iterations=(1, 2, 3, 4))
    # 12 steps: two whole episodes of 5, and a third begun.
    assert [len(env.seeds) for env in watched.used] == [3, 3]
    assert [[len(episode) for episode in env.episodes] for env in watched.used] == [[5, 5, 2]] * 2
    seeds = [seed for env in watched.used for seed in env.seeds]
    assert len(set(seeds)) == 6
    assert all(type(seed) is int and 0 <= seed < 900_000_000 for seed in seeds)


# What has finished lately.


def test_returns_and_lengths_are_those_of_whole_episodes():
    first, second, third = samples(lambda: Counting(5), 1, 3, iterations=(1, 2, 3))
    assert [len(batch.metrics["returns"]) for batch in (first, second, third)] == [0, 1, 1]
    # Five steps of reward 1, although no segment is that long.
    assert second.metrics["returns"].tolist() == [5.0]
    assert second.metrics["lengths"].tolist() == [5]
    assert third.metrics["returns"].tolist() == [5.0]


def test_the_last_hundred_finished_episodes_are_kept():
    env = [lambda: Counting(1), lambda: Counting(2)]
    first, second = samples(env, 2, 60, iterations=(1, 2))
    # Every two steps finish lengths 1, 1, 2: 90 episodes a sample. Of the first 90 the last 10 are kept: 2 1 1 2 ... 2.
    assert sorted(first.metrics["lengths"].tolist()) == [1] * 60 + [2] * 30
    assert sorted(second.metrics["lengths"].tolist()) == [1] * 66 + [2] * 34


def test_a_time_limit_finishes_an_episode_too():
    batch = sample(lambda: Counting(2, terminates=False, truncates=True), 1, 5)
    assert batch.metrics["returns"].tolist() == [2.0, 2.0]


# Blocks of environments.


def test_the_policy_sees_blocks_of_eight():
    seen = []

    def forward(observations):
        seen.append(len(observations))
        return torch.zeros(len(observations), 2)

    sample(Counting, 10, 3, policy=as_policy(Gives(forward), Counting.action_space))
    assert seen == [8] * 3 + [2] * 3


def test_ten_environments_keep_their_order():
    batch = sample([lambda k=k: Counting(k) for k in range(1, 11)], 10, 10)
    observed = [times(rows) for rows in batch.inputs.observations.split(10)]
    assert observed == [[t % length for t in range(10)] for length in range(1, 11)]
    assert batch.num_steps == 100
    assert torch.equal(batch.group_ids, torch.arange(batch.num_episodes))


def test_a_block_s_bits_do_not_depend_on_the_others():
    policy = as_policy(mlp(2, 16, 2, seed=1), Counting.action_space)
    alone, together = sample(Quitting, 8, 12, policy=policy), sample(Quitting, 20, 12, policy=policy)
    num = alone.num_episodes
    assert torch.equal(together.inputs.observations[:96], alone.inputs.observations)
    assert torch.equal(together.inputs.actions[:96], alone.inputs.actions)
    assert torch.equal(together.log_probs[:96], alone.log_probs)
    assert torch.equal(together.lengths[:num], alone.lengths)


def test_blocks_can_be_sampled_from_any_on():
    # The second block of sixteen environments is what a sampler of eight gives as block 1.
    policy = as_policy(mlp(2, 16, 2, seed=1), Counting.action_space)
    whole, second = sample(Quitting, 16, 12, policy=policy), sample(Quitting, 8, 12, policy=policy, first_group=1)
    assert torch.equal(whole.inputs.observations[96:], second.inputs.observations)
    assert torch.equal(whole.inputs.actions[96:], second.inputs.actions)


# Seeds.


def test_the_same_seed_gives_the_same_bits():
    policy = as_policy(mlp(2, 16, 2, seed=1), Counting.action_space)
    for first, second in zip(*(samples(Quitting, 10, 9, iterations=(1, 2), policy=policy) for _ in "ab"), strict=True):
        assert_same(first, second)


@pytest.mark.parametrize("other", [seed_of(2), seed_of(1, trainer_seed=7)])
def test_another_iteration_or_seed_gives_other_bits(other):
    sampler = StepSampler(Quitting, 10, 9)
    batch = StepSampler(Quitting, 10, 9).sample(coin(), 10, seed_of())
    assert not torch.equal(sampler.sample(coin(), 10, other).inputs.observations, batch.inputs.observations)


def test_environments_differ_in_their_starts_and_actions():
    batch = sample(Counting, 8, 12)
    contexts = batch.inputs.observations.split(12)
    assert len({float(rows[0, 0]) for rows in contexts}) == 8
    assert len({tuple(actions.tolist()) for actions in batch.inputs.actions.split(12)}) == 8


def test_what_was_spawned_before_does_not_matter():
    seed = seed_of()
    seed.spawn(3)
    group_seed(seed, 0).spawn(1)
    used = StepSampler(Quitting, 3, 7).sample(coin(), 3, seed)
    assert_same(used, sample(Quitting, 3, 7))


@pytest.mark.usefixtures("without_shape_hook")
def test_sampling_leaves_the_global_generators_alone():
    with global_generators_untouched():
        samples(Quitting, 3, 7, iterations=(1, 2))


def test_global_seeds_do_not_matter():
    batches = []
    for seed in (1, 2):
        random.seed(seed)
        torch.manual_seed(seed)
        batches.append(sample(Quitting, 3, 7))
    assert_same(*batches)


# The border to the environment.


def test_an_environment_may_reuse_its_array():
    batch = sample(SameArray, 2, 5)
    assert segments_of(batch) == [([0, 1, 2], 3, True), ([0, 1], 2, False)] * 2


def test_an_environment_may_overwrite_its_action():
    env = ActionEater()
    policy = as_policy(Constant(0.0, 0.0), env.action_space)
    batch = sample(ActionEater, 1, 6, policy=policy)
    assert not (batch.inputs.actions == 77.0).any()
    rescored = policy.evaluate(batch.inputs).log_probs
    torch.testing.assert_close(rescored, batch.log_probs, rtol=1e-6, atol=1e-6)


def test_a_bounded_box_gets_the_clipped_action_and_the_batch_keeps_the_sampled_one():
    watched = Watched(Lifting)
    policy = as_policy(Constant(2.0, 0.0, 0.0, 0.0), Lifting.action_space)  # mean (2, 0), std 1
    batch = sample(watched, 1, 30, policy=policy)
    sent = np.concatenate([np.stack(actions) for actions in watched.used[0].episodes if actions])
    assert sent.dtype == np.float64
    assert np.abs(sent).max() == 1.0
    assert batch.inputs.actions.abs().max() > 1.0
    np.testing.assert_array_equal(sent, batch.inputs.actions.clamp(-1, 1).double().numpy())
    assert torch.equal(policy.evaluate(batch.inputs).log_probs, batch.log_probs)


def test_numpy_scalars_and_images_are_taken():
    assert sample(NumpyScalars, 1, 4).rewards.tolist() == [0.5] * 4
    batch = sample(Pixels, 1, 4, policy=as_policy(Gives(lambda x: torch.zeros(len(x), 2)), Pixels.action_space))
    assert batch.inputs.observations.dtype == batch.final_inputs.dtype == torch.uint8
    assert batch.inputs.observations[:, 0, 0].tolist() == [250, 251, 252, 250]
    assert batch.final_inputs[:, 0, 0].tolist() == [253, 251]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_named(value):
    with pytest.raises(ValueError, match=rf"GivesReward, reset seed \d+, step 1 gave reward {value}"):
        sample(lambda: GivesReward(value), 1, 3)


def test_a_batch_holds_no_graph():
    batch = sample(Quitting, 2, 5, policy=as_policy(mlp(2, 8, 2), Counting.action_space))
    tensors = [batch.log_probs, batch.rewards, batch.inputs.observations, batch.inputs.actions, batch.final_inputs]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_scoring_the_batch_again_gives_ratio_one():
    policy = as_policy(mlp(2, 16, 2, seed=1), Counting.action_space)
    batch = sample(Quitting, 10, 20, policy=policy)
    torch.testing.assert_close(policy.evaluate(batch.inputs).log_probs, batch.log_probs, rtol=1e-6, atol=1e-6)


# Segments are no groups.


@pytest.mark.parametrize(
    "estimator",
    [
        GroupZScore(),
        GroupZScore(scale="batch"),
        GroupZScore(scale="none"),
        LeaveOneOut(),
        ProcessSupervision(),
        TimestepLeaveOneOut(),
        RewardToGo("group"),
        RewardToGo("timestep"),
        RewardToGo("batch"),
        AnchorState(),
    ],
)
def test_estimators_that_compare_members_raise(estimator):
    with pytest.raises(ValueError, match=r"segments of a StepSampler are no groups.*GAE.*GroupSampler"):
        estimator(sample(Counting, 2, 5))


# Construction.


def test_it_is_a_sampler_and_knows_its_time_limit():
    sampler = StepSampler("CartPole-v1", 2, 4)
    assert isinstance(sampler, Sampler)
    assert sampler.max_length == 500
    assert (sampler.name, sampler.num_envs, sampler.steps) == ("CartPole-v1", 2, 4)
    assert StepSampler(Counting, 1, 1).max_length is None
    sampler.close()
    sampler.close()


@pytest.mark.parametrize("num_groups", [1, 3, 16])
def test_groups_are_the_environments(num_groups):
    with pytest.raises(ValueError, match=f"num_groups is {num_groups}, .* 2 environments: set groups_per_step=2"):
        StepSampler(Counting, 2, 5).sample(coin(), num_groups, seed_of())


@pytest.mark.parametrize(("num_envs", "steps"), [(0, 5), (5, 0), (-1, 5)])
def test_counts_below_one_raise(num_envs, steps):
    with pytest.raises(ValueError, match=f"num_envs={num_envs} and steps={steps} must be >= 1"):
        StepSampler(Counting, num_envs, steps)


def test_one_factory_an_environment():
    with pytest.raises(ValueError, match="2 environment factories for 3 members"):
        StepSampler([Counting, Counting], 3, 5)
    assert sample([Counting, Quitting], 2, 5).num_steps == 10
