import gymnasium
import numpy as np
import pytest
import torch
from environments import Bandit, Counting, Lifting, Pixels
from gymnasium.spaces import Dict, Discrete, Text
from helpers import Constant, Gives, global_generators_untouched
from torch import nn

from grpolib import Action, Deployed, as_policy, evaluate, mlp

OBSERVATIONS = Counting.observation_space
TWO = Discrete(2)


def deployed_in(env, module, **keywords):
    return Deployed(module, env.observation_space, env.action_space, **keywords)


def by_first_feature():
    """Action 1 where the first feature is positive."""
    return Gives(lambda x: torch.stack([-x[:, 0], x[:, 0]], dim=1))


# What env.step takes.


def test_one_observation_gives_one_action():
    act = Deployed(by_first_feature(), OBSERVATIONS, TWO)
    action = act(np.array([1.0, 0.0], dtype=np.float32))
    assert action == 1
    assert type(action) is int
    assert act([-1.0, 0.0]) == 0


def test_a_batch_gives_one_action_a_row():
    act = Deployed(by_first_feature(), OBSERVATIONS, TWO)
    actions = act(np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]]))
    assert isinstance(actions, np.ndarray)
    assert actions.tolist() == [1, 0, 1]
    assert act([[1.0, 0.0]]).tolist() == [1]


def test_actions_count_from_the_start_of_their_space():
    assert Deployed(Constant(0.0, 5.0), OBSERVATIONS, Discrete(2, start=7))([0.0, 0.0]) == 8


def test_continuous_actions_keep_to_the_bounds_and_the_type():
    act = deployed_in(Lifting, Constant(3.0, 0.25, 0.0, 0.0))
    one, two = act([0.0]), act([[0.0], [1.0]])
    assert one.tolist() == [1.0, 0.25]
    assert one.dtype == two.dtype == np.float64
    assert two.tolist() == [[1.0, 0.25], [1.0, 0.25]]
    assert Lifting.action_space.contains(one)


def test_images_stay_bytes_until_the_network():
    seen = []

    def look(observations):
        seen.append(observations.dtype)
        return observations.flatten(1).float()[:, :2]

    deployed_in(Pixels, Gives(look))(np.full((2, 2), 250, dtype=np.uint8))
    assert seen == [torch.uint8]


def test_it_plays_what_evaluation_reports():
    policy = mlp(4, 16, 2, seed=3)
    env = gymnasium.make("CartPole-v1")
    act = deployed_in(env, policy)
    observation, _ = env.reset(seed=1_000_000_000)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, over = total + reward, terminated or truncated
    assert total == evaluate(policy, "CartPole-v1", episodes=1).argmax.mean


# By mode or by sample.


def test_samples_follow_the_probabilities_and_the_seed():
    observations = np.zeros((2000, 2))

    def sampled(seed):
        return Deployed(Constant(0.0, np.log(3.0)), OBSERVATIONS, TWO, seed=seed)(observations, deterministic=False)

    assert abs(sampled(0).mean() - 0.75) < 0.04  # four standard deviations
    assert np.array_equal(sampled(0), sampled(0))
    assert not np.array_equal(sampled(0), sampled(1))
    assert Deployed(Constant(0.0, np.log(3.0)), OBSERVATIONS, TWO)(observations).tolist() == [1] * 2000


@pytest.mark.usefixtures("without_shape_hook")
def test_the_global_generators_are_left_alone():
    act = deployed_in(Lifting, Constant(0.0, 0.0, 0.0, 0.0))
    with global_generators_untouched():
        act([0.0], deterministic=False)


def test_dropout_is_off():
    module = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.9), nn.Linear(64, 2))
    act = Deployed(module, OBSERVATIONS, TWO)
    module.train()
    observations = np.random.default_rng(0).normal(size=(50, 2))
    assert np.array_equal(act(observations), act(observations))
    assert not module.training


def test_the_observation_is_only_read():
    observation = np.zeros(2, dtype=np.float32)
    Deployed(Gives(lambda x: x.add_(1.0)), OBSERVATIONS, TWO)(observation)
    assert observation.tolist() == [0.0, 0.0]


# Stable-Baselines3's model.


def test_predict_gives_actions_and_a_state():
    model = Deployed(by_first_feature(), OBSERVATIONS, TWO)
    actions, state = model.predict(
        np.array([[1.0, 0.0], [-1.0, 0.0]]), state=None, episode_start=np.array([True, True]), deterministic=True
    )
    assert (actions.tolist(), state) == ([1, 0], None)


class Remembers(nn.Module):
    """Counts its steps in its state, and acts by whether they are odd."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def act(self, observations, rng, *, state=None, deterministic=False):
        state = torch.zeros(len(observations), dtype=torch.long) if state is None else state + 1
        return Action(state % 2, torch.zeros(len(observations)), state)

    def evaluate(self, inputs):
        raise NotImplementedError


def test_a_state_goes_on_until_the_episode_ends():
    model, observation = Deployed(Remembers(), OBSERVATIONS, TWO), np.zeros((1, 2))
    state, seen = None, []
    for start in (True, False, False, True, False):
        actions, state = model.predict(observation, state=state, episode_start=np.array([start]))
        seen.append(int(actions[0]))
    assert seen == [0, 1, 0, 0, 1]
    both = np.zeros((2, 2))
    _, state = model.predict(both)
    with pytest.raises(ValueError, match=r"episode_start is \[True, False\]: give a recurrent policy one environment"):
        model.predict(both, state=state, episode_start=[True, False])


# What cannot be.


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (1, 3), (1, 1, 2)])
def test_observations_of_another_shape(shape):
    act = Deployed(by_first_feature(), OBSERVATIONS, TWO)
    with pytest.raises(ValueError, match=r"got shape .* give one observation, \(2,\), or a batch, \('n', 2\)"):
        act(np.zeros(shape))


@pytest.mark.usefixtures("without_shape_hook")
def test_spaces_and_policies_that_are_not_supported():
    with pytest.raises(ValueError, match=r"observation space .* not supported"):
        Deployed(mlp(2, 2), Dict(a=Text(1)), TWO)
    with pytest.raises(ValueError, match=r"action space .* not supported"):
        Deployed(as_policy(mlp(2, 2), TWO), OBSERVATIONS, Text(1))
    with pytest.raises(TypeError, match=r"a policy is a torch.nn.Module, got function"):
        Deployed(by_first_feature, OBSERVATIONS, TWO)
    with pytest.raises(TypeError, match=r"seed is 0.5"):
        Deployed(mlp(2, 2), OBSERVATIONS, TWO, seed=0.5)


def test_a_policy_that_was_trained_is_used_where_it_is():
    policy = as_policy(Constant(0.0, 1.0, 0.0), Bandit.action_space)
    act = deployed_in(Bandit, policy)
    assert act(np.eye(3)[0]) == 1
    with torch.no_grad():
        policy.module.output.copy_(torch.tensor([0.0, 0.0, 2.0]))
    assert act(np.eye(3)[0]) == 2
