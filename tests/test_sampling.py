import math
import re
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from environments import (
    ActionEater,
    Counting,
    GivesObservation,
    GivesReward,
    Lifting,
    NumpyScalars,
    OldGym,
    Pixels,
    Quitting,
    SameArray,
    Sent,
    Unseeded,
)
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from helpers import Constant, Gives, global_generators_untouched, parameters_of
from torch import nn
from torch.distributions import Categorical, Normal

from grpolib import GroupSampler, GRPOTrainer, Sampler, as_policy, mlp
from grpolib.sampling.environments import environment_name, make_environments
from grpolib.sampling.lanes import Lanes
from grpolib.sampling.protocols import group_seed

REAL = {"CartPole-v1": (4, 2), "LunarLander-v3": (8, 4), "Pendulum-v1": (3, 2)}


def seed_of(iteration=1, trainer_seed=0):
    return np.random.SeedSequence(trainer_seed, spawn_key=(iteration,))


def uniform_policy(env, *outputs):
    return as_policy(Constant(*outputs), env.action_space)


def coin():
    return as_policy(Constant(0.0, 0.0), Discrete(2))


def sampled(env, num_groups=1, *, group_size=3, policy=None, iteration=1, **keywords):
    """A batch of an environment of two actions; every member is an environment of its own."""
    sampler = GroupSampler(env, group_size)
    batch = sampler.sample(policy or coin(), num_groups, seed_of(iteration), **keywords)
    sampler.close()
    return batch


def episodes_of(batch):
    """For each episode: its observations, actions and rewards."""
    lengths = batch.lengths.tolist()
    columns = (batch.inputs.observations, batch.inputs.actions, batch.rewards)
    return list(zip(*(column.split(lengths) for column in columns), strict=True))


def assert_same_batch(first, second):
    for name in ("log_probs", "rewards", "lengths", "terminated", "final_inputs"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.inputs.observations, second.inputs.observations)
    assert torch.equal(first.inputs.actions, second.inputs.actions)


@pytest.fixture(scope="module", params=REAL)
def real(request):
    """A sampler of a real environment with everything that its members were given, its policy, and a batch."""
    made = []

    def factory():
        made.append(Sent(gymnasium.make(request.param)))
        return made[-1]

    sampler = GroupSampler(factory, 3)
    inputs, outputs = REAL[request.param]
    policy = as_policy(mlp(inputs, 16, outputs, seed=1), sampler.action_space)
    batch = sampler.sample(policy, 2, seed_of())
    yield request.param, made[-3:], policy, batch
    sampler.close()


# On real environments.


def test_a_group_shares_its_start_and_groups_do_not(real):
    _, members, _, batch = real
    starts = batch.inputs.observations[batch.offsets[:-1]].reshape(2, 3, -1)
    assert (starts == starts[:, :1]).all()
    assert not torch.equal(starts[0, 0], starts[1, 0])
    assert batch.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert members[0].seeds == members[1].seeds == members[2].seeds
    assert len(set(members[0].seeds)) == 2
    assert all(0 <= seed < 900_000_000 for seed in members[0].seeds)


def test_one_seed_for_all_members_is_one_start():
    members = make_environments("CartPole-v1", 4)
    lanes, starts = Lanes(members), {}
    for seed in (7, 8):
        for member in range(4):
            lanes.reset(member, seed)
        starts[seed] = lanes.observations(range(4))
    assert all(torch.equal(rows, rows[:1].expand(4, 4)) for rows in starts.values())
    assert not torch.equal(starts[7], starts[8])
    # A vector environment makes 7, 8, 9 and 10 of a 7: four starts.
    vector = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
    assert len(np.unique(vector.reset(seed=7)[0], axis=0)) == 4
    assert np.array_equal(vector.reset(seed=[7] * 4)[0], starts[7].numpy())
    for environment in (vector, *members):
        environment.close()


def test_members_are_complete_episodes_and_replay_exactly(real):
    name, members, _, batch = real
    environment = gymnasium.make(name)
    for episode, (observations, _, rewards) in enumerate(episodes_of(batch)):
        group, member = divmod(episode, 3)
        observation, _ = environment.reset(seed=members[member].seeds[group])
        given = members[member].episodes[group]
        assert len(given) == batch.lengths[episode]
        total = 0.0
        for t, action in enumerate(given):
            assert np.array_equal(observations[t].numpy(), observation.astype(np.float32))
            observation, reward, terminated, truncated, _ = environment.step(action)
            assert float(rewards[t]) == np.float32(reward)
            assert (terminated or truncated) == (t == len(given) - 1)
            total += float(reward)
        assert np.array_equal(batch.final_inputs[episode].numpy(), observation.astype(np.float32))
        assert bool(batch.terminated[episode]) == terminated
        assert float(batch.episode_returns[episode]) == pytest.approx(total, rel=1e-5)
    environment.close()


def test_the_environment_was_given_the_actions_of_the_batch(real):
    _, members, _, batch = real
    space = members[0].action_space
    for episode, (_, actions, _) in enumerate(episodes_of(batch)):
        group, member = divmod(episode, 3)
        given = members[member].episodes[group]
        if isinstance(space, Discrete):
            assert given == actions.tolist()
        else:
            assert np.array_equal(np.stack(given), np.clip(actions.numpy(), space.low, space.high))
        assert all(space.contains(one) for one in given)


def test_scoring_the_batch_again_gives_ratio_one(real):
    _, _, policy, batch = real
    ratios = (policy.evaluate(batch.inputs).log_probs - batch.log_probs).exp()
    assert torch.allclose(ratios, torch.ones_like(ratios), atol=1e-6, rtol=0)


def test_a_batch_holds_no_graph(real):
    _, _, _, batch = real
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    tensors += [batch.inputs.observations, batch.inputs.actions]
    assert len(tensors) >= 7
    assert not any(tensor.requires_grad or tensor.grad_fn for tensor in tensors)
    assert batch.log_probs.dtype == batch.rewards.dtype == batch.inputs.observations.dtype == torch.float32


def test_lunar_landers_with_one_seed_and_equal_actions_stay_equal():
    # Also after an episode of other actions: nothing survives a reset.
    first, second = make_environments("LunarLander-v3", 2)
    second.reset(seed=123)
    for _ in range(50):
        second.step(2)
    rng = np.random.default_rng(0)
    steps, seed = 0, 42
    while steps < 300:
        starts = [environment.reset(seed=seed)[0] for environment in (first, second)]
        assert np.array_equal(*starts)
        ended = False
        while not ended:
            action = int(rng.integers(4))
            (left, reward, dead, cut, _), (right, other, *_) = first.step(action), second.step(action)
            assert np.abs(left - right).max() == 0
            assert reward == other
            steps, ended = steps + 1, dead or cut
        seed += 1
    for environment in (first, second):
        environment.close()


# Seeds.


@pytest.fixture(scope="module")
def ragged_batch():
    return sampled(Quitting, 5)


def test_the_same_seed_gives_the_same_bits(ragged_batch):
    assert_same_batch(sampled(Quitting, 5), ragged_batch)


def test_a_sampler_that_was_used_before_gives_the_same_bits(ragged_batch):
    sampler = GroupSampler(Quitting, 3)
    sampler.sample(coin(), 2, seed_of(7))
    assert_same_batch(sampler.sample(coin(), 5, seed_of()), ragged_batch)


@pytest.mark.parametrize("other", [seed_of(2), seed_of(trainer_seed=1)], ids=["iteration", "trainer seed"])
def test_another_iteration_or_seed_gives_another_batch(other, ragged_batch):
    batch = GroupSampler(Quitting, 3).sample(coin(), 5, other)
    assert not torch.equal(batch.inputs.observations[:1], ragged_batch.inputs.observations[:1])
    assert batch.lengths.tolist() != ragged_batch.lengths.tolist()


def test_groups_differ_in_their_actions_not_only_in_their_starts():
    actions = [tuple(episode[1].tolist()) for episode in episodes_of(sampled(lambda: Counting(12), 4))]
    assert len(set(actions)) > 4


def test_groups_can_be_sampled_from_any_on(ragged_batch):
    tail = sampled(Quitting, 2, first_group=3)
    episodes = torch.arange(9, 15)
    rows = ragged_batch.steps_of(episodes)
    assert torch.equal(tail.lengths, ragged_batch.lengths[episodes])
    assert torch.equal(tail.log_probs, ragged_batch.log_probs[rows])
    assert torch.equal(tail.inputs.observations, ragged_batch.inputs.observations[rows])
    assert torch.equal(tail.inputs.actions, ragged_batch.inputs.actions[rows])
    assert tail.group_ids.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_group_s_seed_does_not_depend_on_what_was_spawned_before():
    seed = seed_of(4)
    before = group_seed(seed, 2).generate_state(4).tolist()
    seed.spawn(5)
    assert group_seed(seed, 2).generate_state(4).tolist() == before
    states = {tuple(group_seed(seed_of(i), k).generate_state(4).tolist()) for i in range(4) for k in range(4)}
    assert len(states) == 16


@pytest.mark.usefixtures("without_shape_hook")
def test_sampling_leaves_the_global_generators_alone():
    sampler = GroupSampler("CartPole-v1", 2)
    policy = as_policy(mlp(4, 8, 2), sampler.action_space)
    with global_generators_untouched():
        sampler.sample(policy, 1, seed_of())


# Ragged groups.


def test_only_the_living_are_stepped():
    # Quitting raises when it is stepped after its end; member by member: reward t, time t, ends by action 1.
    batch = sampled(lambda: Quitting(6), 4, group_size=5)
    assert len(set(batch.lengths.tolist())) > 2
    for observations, actions, rewards in episodes_of(batch):
        length = len(actions)
        assert rewards.tolist() == list(range(1, length + 1))
        assert observations[:, 1].tolist() == list(range(length))
        assert actions[:-1].tolist() == [0] * (length - 1)
        assert length == 6 or actions[-1] == 1
        assert len(set(observations[:, 0].tolist())) == 1
    assert batch.final_inputs[:, 1].tolist() == batch.lengths.tolist()


def test_log_probabilities_belong_to_their_actions():
    policy = as_policy(Constant(math.log(3.0), 0.0), Discrete(2))
    batch = sampled(lambda: Quitting(6), 4, group_size=5, policy=policy)
    expected = torch.tensor([0.75, 0.25]).log()[batch.inputs.actions]
    torch.testing.assert_close(batch.log_probs, expected)


def test_the_policy_sees_only_the_living_members():
    seen = []

    def forward(rows):
        seen.append(len(rows))
        return torch.zeros(len(rows), 2)

    batch = sampled(lambda: Quitting(6), group_size=4, policy=as_policy(Gives(forward), Discrete(2)))
    running = [int((batch.lengths > t).sum()) for t in range(int(batch.lengths.max()))]
    assert seen == running


@pytest.mark.parametrize(
    ("options", "terminated"),
    [({}, True), ({"terminates": False, "truncates": True}, False), ({"truncates": True}, True)],
    ids=["terminated", "truncated", "both"],
)
def test_a_time_limit_is_no_end(options, terminated):
    batch = sampled(lambda: Counting(4, **options))
    assert batch.lengths.tolist() == [4, 4, 4]
    assert batch.terminated.tolist() == [terminated] * 3


def test_an_environment_s_own_time_limit_truncates():
    batch = sampled(lambda: gymnasium.make("CartPole-v1", max_episode_steps=5), policy=coin())
    assert batch.lengths.tolist() == [5, 5, 5]
    assert batch.terminated.tolist() == [False] * 3
    assert GroupSampler(lambda: gymnasium.make("CartPole-v1", max_episode_steps=5), 2).max_length == 5


@pytest.mark.parametrize(("env", "expected"), [("CartPole-v1", 500), (Counting, None)])
def test_the_longest_episode_is_the_time_limit(env, expected):
    assert GroupSampler(env, 2).max_length == expected


# Arrays that the environment goes on using.


def test_observations_are_copied():
    batch = sampled(SameArray)
    for observations, _, _ in episodes_of(batch):
        assert observations[:, 1].tolist() == [0.0, 1.0, 2.0]
    assert batch.final_inputs[:, 1].tolist() == [3.0, 3.0, 3.0]


def test_an_environment_may_overwrite_its_action():
    policy = as_policy(Constant(0.0, 0.0), ActionEater.action_space)
    batch = sampled(ActionEater, policy=policy)
    assert float(batch.inputs.actions.abs().max()) < 10
    torch.testing.assert_close(policy.evaluate(batch.inputs).log_probs.detach(), batch.log_probs)


def test_an_environment_may_overwrite_several_numbers():
    space = MultiDiscrete([2, 3])
    policy = as_policy(Constant(0.0, 0.0, 0.0, 0.0, 0.0), space)
    batch = sampled(lambda: ActionEater(space), policy=policy)
    assert int(batch.inputs.actions.max()) < 3


def test_a_box_environment_gets_the_clipped_action_and_the_batch_keeps_the_sampled_one():
    made = []

    def factory():
        made.append(Sent(Lifting()))
        return made[-1]

    policy = as_policy(Constant(0.0, 0.0, 1.0, 1.0), Lifting.action_space)
    batch = sampled(factory, 3, policy=policy)
    assert bool((batch.inputs.actions.abs() > 1).any())
    for episode, (_, actions, _) in enumerate(episodes_of(batch)):
        group, member = divmod(episode, 3)
        given = np.stack(made[member - 3].episodes[group])
        assert given.dtype == np.float64
        assert np.array_equal(given, np.clip(actions.double().numpy(), -1.0, 1.0))
    normal = Normal(0.0, math.e)
    torch.testing.assert_close(batch.log_probs, normal.log_prob(batch.inputs.actions).sum(1))


# Types at the border.


def test_numpy_scalars_are_rewards_and_flags():
    batch = sampled(NumpyScalars)
    assert batch.rewards.tolist() == [0.5] * 9
    assert batch.terminated.tolist() == [True] * 3
    assert batch.inputs.observations.dtype == torch.float32


def test_images_stay_uint8():
    policy = as_policy(Gives(lambda rows: torch.zeros(len(rows), 2)), Discrete(2))
    batch = sampled(Pixels, policy=policy)
    assert batch.inputs.observations.dtype == batch.final_inputs.dtype == torch.uint8
    assert batch.inputs.observations[:3, 0, 0].tolist() == [250, 251, 252]
    assert batch.final_inputs[0, 0, 0] == 253


def test_frozen_lake_behind_a_flat_observation():
    # It needs a plain int as its action, and refuses arrays.
    def factory():
        return gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1"))

    policy = as_policy(mlp(16, 4), Discrete(4))
    batch = sampled(factory, 2, policy=policy)
    assert batch.inputs.observations.dtype == torch.float32
    assert batch.inputs.observations.sum(1).tolist() == [1.0] * batch.num_steps


def test_large_finite_observations_are_accepted():
    # Their sum overflows float32, they themselves do not.
    batch = sampled(lambda: GivesObservation(np.array([3e38, 3e38], dtype=np.float32)))
    assert bool(batch.inputs.observations.isfinite().all())


# What is not finite, or has the wrong shape.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), None])
def test_a_reward_that_is_no_number_is_named(value):
    with pytest.raises((ValueError, TypeError), match=rf"GivesReward, reset seed \d+, step 1 gave reward {value}"):
        sampled(lambda: GivesReward(value))


def test_a_reward_that_float32_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"GivesReward, reset seed \d+, step 1 gave reward (1e\+300|inf)"):
        sampled(lambda: GivesReward(1e300))


@pytest.mark.parametrize("value", [[math.nan, 0.0], [math.inf, 0.0], [math.inf, -math.inf]], ids=str)
@pytest.mark.parametrize(("at", "step"), [(0, 0), (2, 1)])
def test_an_observation_that_is_not_finite_is_named(value, at, step):
    shown = re.escape(str(np.array(value)))
    message = rf"GivesObservation, reset seed \d+, step {step} gave a non-finite observation: {shown}.*wrapper"
    with pytest.raises(ValueError, match=message):
        sampled(lambda: GivesObservation(np.array(value), at))


def test_an_observation_that_float32_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"GivesObservation, reset seed \d+, step 1 gave .*(inf|1\.?e\+300)"):
        sampled(lambda: GivesObservation(np.array([1e300, 0.0])))


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros((1, 2)), np.zeros(())], ids=["long", "row", "scalar"])
def test_an_observation_of_another_shape_is_named(value):
    shape = re.escape(str(value.shape))
    message = rf"GivesObservation, reset seed \d+, step 1 gave an observation of shape {shape}.*space says \(2,\)"
    with pytest.raises(ValueError, match=message):
        sampled(lambda: GivesObservation(value))


@pytest.mark.parametrize("outputs", [(math.nan, 0.0), (0.0, math.inf), (-math.inf, -math.inf)], ids=str)
@pytest.mark.parametrize("env", [Counting, ActionEater])
def test_a_policy_that_diverged_is_named_before_the_environment_sees_its_actions(env, outputs):
    made = []

    def factory():
        made.append(Sent(env()))
        return made[-1]

    policy = as_policy(Constant(*outputs), env.action_space)
    with pytest.raises(ValueError, match=r"(?i)policy.*(nan|inf|finite)"):
        sampled(factory, policy=policy)
    assert all(not actions for member in made for actions in member.episodes)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_distribution_that_scores_the_parts_of_an_action_apart_is_refused():
    policy = as_policy(Gives(lambda rows: Normal(torch.zeros(len(rows), 2), 1.0)), Lifting.action_space)
    with pytest.raises(ValueError, match=r"log-probabilities of shape \(3, 2\) for 3 observations"):
        sampled(Lifting, policy=policy)


# An environment that ignores its seed.


def test_an_environment_that_ignores_its_seed_gets_one_warning():
    message = r"Unseeded gave different first observations for equal reset seeds.*self\.np_random"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler = GroupSampler(Unseeded, 3)
        sampler.sample(coin(), 2, seed_of())
        sampler.sample(coin(), 2, seed_of(2))
    assert len(caught) == 1
    assert re.search(message, str(caught[0].message))


def test_members_that_start_apart_get_one_warning():
    # Each environment repeats its own starts, but they are not those of the others.
    class Apart(Counting):
        made = 0

        def __init__(self):
            super().__init__()
            Apart.made += 1
            self.number = Apart.made

        def observation(self):
            return super().observation() + self.number

    sampler = GroupSampler(Apart, 3)
    with pytest.warns(UserWarning, match=r"Apart gave different first observations"):
        sampler.sample(coin(), 2, seed_of())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.sample(coin(), 2, seed_of(2))


def test_a_counter_that_survives_a_reset_is_noticed():
    class Remembering(Counting):
        resets = 0

        def observation(self):
            return super().observation() + self.resets

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            return super().reset(seed=seed, options=options)

    with pytest.warns(UserWarning, match=r"Remembering gave different first observations"):
        GroupSampler(Remembering, 3)


# What a sampler is made from.


def test_a_sampler_of_groups_is_a_sampler():
    assert isinstance(GroupSampler(Counting, 2), Sampler)


def test_the_default_group_has_sixteen_members():
    assert GroupSampler(Counting).sample(coin(), 1, seed_of()).num_episodes == 16


def test_one_factory_a_member():
    lengths = [2, 5, 3]
    batch = sampled([lambda length=length: Counting(length) for length in lengths], 2)
    assert batch.lengths.tolist() == lengths * 2


def test_every_member_has_an_environment_of_its_own():
    only_one = Counting()
    for factory in (lambda: only_one, lambda: gymnasium.Wrapper(only_one)):
        with pytest.raises((TypeError, ValueError), match=r"(?i)factory.*Counting.*(same|new|own)"):
            sampled(factory, group_size=2)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("make_source", "error", "message"),
    [
        (Counting, TypeError, r"Counting.*one environment.*factory.*lambda: gymnasium\.make"),
        (lambda: SyncVectorEnv([Counting] * 2), TypeError, r"one environment.*factory.*resets its members on its own"),
        (
            lambda: lambda: SyncVectorEnv([Counting] * 2),
            TypeError,
            r"factory made a .*SyncVectorEnv.*plain gymnasium\.Env",
        ),
        (lambda: OldGym, TypeError, r"factory made a environments\.OldGym.*old gym"),
        (OldGym, TypeError, r"id or a factory, got environments\.OldGym; it must be a Gymnasium environment"),
        (lambda: 7, TypeError, r"id or a factory, got builtins\.int"),
        (lambda: None, TypeError, r"id or a factory, got builtins\.NoneType"),
        (lambda: [Counting()] * 2, TypeError, r"factor(y|ies)"),
        (lambda: [Counting, 7], TypeError, r"factor(y|ies).* 7"),
        (lambda: [Counting] * 3, ValueError, r"3 environment factories for 2 members.*one per member"),
        (list, ValueError, r"0 environment factories for 2 members"),
        (
            lambda: [Counting, Quitting, Pixels][1:],
            ValueError,
            r"equal spaces: Pixels has Box\(0, 255.*the first has Box\(",
        ),
        (
            lambda: [Counting, _with_actions(Discrete(3))],
            ValueError,
            r"equal spaces: Counting has .*Discrete\(3\).*Discrete\(2\)",
        ),
        (
            lambda: _with_actions(Text(3)),
            ValueError,
            r"action space Text.*not supported.*TransformAction",
        ),
        (lambda: lambda: NormalizeObservation(Counting()), ValueError, r"NormalizeObservation keeps .*give Normalized"),
        (
            lambda: lambda: TimeLimit(NormalizeReward(Counting()), 2),
            ValueError,
            r"NormalizeReward .*leave it out",
        ),
    ],
)
def test_sources_that_make_no_group(make_source, error, message):
    with pytest.raises(error, match=message):
        GroupSampler(make_source(), 2)


def _with_actions(space):
    def factory():
        environment = Counting()
        environment.action_space = space
        return environment

    return factory


@pytest.mark.parametrize("group_size", [1, 0, -2])
def test_a_group_of_one_has_nothing_to_compare(group_size):
    with pytest.raises(ValueError, match=rf"group_size is {group_size}: a group needs >= 2"):
        GroupSampler(Counting, group_size)


@pytest.mark.parametrize("num_groups", [0, -1])
def test_no_groups_are_no_batch(num_groups):
    with pytest.raises(ValueError, match=rf"num_groups is {num_groups}: .*at least one"):
        sampled(Counting, num_groups)


def test_an_unknown_id_is_gymnasium_s_own_error():
    with pytest.raises(gymnasium.error.Error, match="NoSuchEnvironment"):
        GroupSampler("NoSuchEnvironment-v0", 2)


def test_an_environment_is_called_by_its_id_or_its_class():
    assert environment_name(gymnasium.make("CartPole-v1")) == "CartPole-v1"
    assert environment_name(Counting()) == "Counting"
    assert GroupSampler(Counting, 2).name == "Counting"


def test_environments_are_closed_and_closing_twice_is_harmless():
    made, closed = [], []

    class Closing(Counting):
        def __init__(self):
            super().__init__()
            made.append(self)

        def close(self):
            closed.append(self)

    sampler = GroupSampler(Closing, 2)
    sampler.sample(coin(), 1, seed_of())
    sampler.close()
    sampler.close()
    assert len(made) >= 2
    assert sorted(map(id, closed)) == sorted(map(id, made))


# Threads.


@pytest.mark.usefixtures("two_threads")
def test_sampling_uses_one_thread_and_gives_the_others_back():
    seen = []

    def forward(rows):
        seen.append(torch.get_num_threads())
        return torch.zeros(len(rows), 2)

    sampled(Counting, policy=as_policy(Gives(forward), Discrete(2)))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_are_given_back_also_after_an_error():
    with pytest.raises(ValueError, match="gave reward nan"):
        sampled(lambda: GivesReward(math.nan))
    assert torch.get_num_threads() == 2


# What environments and policies must not do.


class Broken(Counting):
    """Breaks one rule of Gymnasium."""

    def __init__(self, rule):
        super().__init__(3)
        self.rule = rule

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return {"pair": (observation,), "none": (None, info), "words": (np.array(["a", "b"]), info)}.get(
            self.rule, (observation, info)
        )

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return {
            "old step": (observation, reward, terminated, info),
            "no step": None,
            "a word as reward": (observation, "1.5", terminated, truncated, info),
            "a word as flag": (observation, reward, "False", truncated, info),
            "no flag": (observation, reward, terminated, None, info),
            "nan as flag": (observation, reward, math.nan, truncated, info),
            "flags": (observation, reward, np.zeros(2), truncated, info),
        }.get(self.rule, (observation, reward, terminated, truncated, info))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "pair",
            r"Broken\.reset\(seed=\d+\) failed with .*must take seed=, and return an observation and a dictionary",
        ),
        ("none", r"Broken, reset seed \d+, step 0 gave an observation of (shape \(\)|object)"),
        ("words", r"Broken, reset seed \d+, step 0 gave an observation of <U1: observations are numbers"),
        ("old step", r"Broken, reset seed \d+, step 0 gave 4 things from step"),
        ("no step", r"Broken, reset seed \d+, step 0 gave None from step"),
        ("a word as reward", r"Broken, reset seed \d+, step 0 gave reward '1.5': a reward is a number"),
        ("a word as flag", r"Broken, reset seed \d+, step 0 gave terminated='False': it is True or False"),
        ("no flag", r"step 0 gave truncated=None: it is True or False"),
        ("nan as flag", r"step 0 gave terminated=nan: it is True or False"),
        ("flags", r"step 0 gave terminated=array.*: it is True or False"),
    ],
)
def test_an_environment_that_breaks_gymnasium_s_rules_is_named(rule, message):
    with pytest.raises(ValueError, match=message):
        sampled(lambda: Broken(rule))


@pytest.mark.parametrize("kind", [bool, int, float, np.bool_, np.float32, np.array], ids=lambda kind: kind.__name__)
def test_flags_may_be_numpy_s_or_0_and_1(kind):
    class Flags(Counting):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, kind(terminated), kind(truncated), info

    for way in ({"terminates": True}, {"terminates": False, "truncates": True}):
        batch = sampled(lambda way=way: Flags(3, **way))
        assert batch.lengths.tolist() == [3, 3, 3]
        assert batch.terminated.tolist() == [way["terminates"]] * 3


def test_a_picture_that_bytes_cannot_hold_is_named():
    class Overexposed(Counting):
        observation_space = Box(0, 255, (2, 2), np.uint8)

        def observation(self):
            return np.full((2, 2), 255.5 if self.time == 1 else 255.0)

    with pytest.raises(ValueError, match=r"step 0 gave an observation of float64 that no bytes hold.*says uint8"):
        sampled(Overexposed)


def test_a_reset_that_takes_no_seed_is_named():
    class Seedless(Counting):
        def reset(self):
            return super().reset()

    with pytest.raises(ValueError, match=r"Seedless\.reset\(seed=0\) failed with .*must take seed="):
        sampled(Seedless)


@pytest.mark.parametrize(
    "distribution",
    [
        lambda rows: Categorical(logits=torch.zeros(len(rows), 6)),  # six actions where there are two
        lambda rows: Normal(torch.zeros(len(rows)), 1.0),  # no whole numbers
    ],
)
def test_an_action_outside_the_space_never_reaches_the_environment(distribution):
    policy = as_policy(Gives(distribution), Discrete(2))
    with pytest.raises(ValueError, match=r"gave actions .* for Discrete\(2\): expected whole numbers from 0 to 1"):
        sampled(lambda: Quitting(4), group_size=16, policy=policy)


def test_one_action_for_all_is_refused():
    policy = as_policy(Gives(lambda rows: Categorical(logits=torch.zeros(1, 2))), Discrete(2))
    with pytest.raises(ValueError, match=r"gave 1 actions .* for 3 observations: expected one each"):
        sampled(lambda: Counting(3), policy=policy)


@pytest.mark.parametrize("mode", [None, True])
def test_an_environment_that_would_reset_itself_gives_whole_episodes_and_nothing_else(mode):
    def factory():
        return gymnasium.wrappers.Autoreset(Counting(3)) if mode else Counting(3)

    batch = sampled(factory, num_groups=2)
    assert batch.lengths.tolist() == [3] * 6
    assert batch.episode_returns.tolist() == batch.episode_returns[:1].tolist() * 6
    assert batch.final_inputs[:, 1].tolist() == [3.0] * 6


def test_images_reach_a_network_that_makes_them_numbers():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))

        def forward(self, images):
            assert images.dtype == torch.uint8
            return self.layers(images.float() / 255)

    network = Network()
    environment = Pixels()
    network(torch.zeros(1, *environment.observation_space.shape, dtype=torch.uint8))
    pieces = {"advantages": lambda batch: torch.ones(batch.num_steps), "group_size": 2, "groups_per_step": 1}
    trainer = GRPOTrainer(network, Pixels, **pieces)
    before = parameters_of(network)
    trainer.train(iterations=1)
    assert any(not torch.equal(value, before[name]) for name, value in parameters_of(network).items())
