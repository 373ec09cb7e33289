"""An environment for any two spaces, and what acts in it: the rows and columns of the table in test_spaces.py."""

import copy
from functools import partial

import gymnasium
import numpy as np
from environments import box
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from grpolib import Masked, MaskInObservation, Normalized, Squashed, gru, lstm, network

OBSERVATIONS = {
    "box": box(3),
    "whole numbers": Box(-9, 9, (2, 2), np.int64),
    "image": Box(0, 255, (8, 6, 3), np.uint8),
    "discrete": Discrete(4, start=3),
    "multi-discrete": MultiDiscrete([3, 2], start=[1, -1]),
    "multi-binary": MultiBinary(3),
    "dict": Dict(place=box(2), camera=Box(0, 255, (5, 5), np.uint8), inner=Dict(kind=Discrete(3), angle=box())),
    "tuple": Tuple([box(1), Tuple([Discrete(2), MultiBinary((2, 2))])]),
}

DISCRETE = Discrete(3, start=-1)
NESTED = Dict(steer=box(2, low=-1.0, high=1.0), gear=Discrete(3), lamps=Tuple([MultiBinary(2), MultiDiscrete([2, 3])]))
ACTIONS = {
    "discrete": (DISCRETE, network),
    "multi-discrete": (MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, -1]]), network),
    "multi-binary": (MultiBinary((2, 2)), network),
    "box": (box(2), network),
    "bounded box": (Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64), network),
    "squashed": (Box(-3.0, -2.0, (2,), np.float32), lambda seen, space: Squashed(network(seen, space), space)),
    "dict": (NESTED, network),
    "tuple": (Tuple([Discrete(2), box(1)]), network),
    "masked": (DISCRETE, lambda seen, space: Masked(network(seen["observation"], space), space)),
    "masked multi-discrete": (
        MultiDiscrete([2, 3]),
        lambda seen, space: Masked(network(seen["observation"], space), space),
    ),
    "gru": (DISCRETE, partial(gru, width=8)),
    "lstm": (NESTED, partial(lstm, width=8)),
    "normalized": (DISCRETE, lambda seen, space: Normalized(network(seen, space), seen)),
}


class Anything(gymnasium.Env):
    """Observations from one space, actions of the other, two to four steps; an action outside its space raises."""

    def __init__(self, observation_space, action_space):
        # A space of its own: it is seeded at each reset.
        self.observation_space, self.action_space = copy.deepcopy(observation_space), action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1000)))
        self.left = 2 + int(self.np_random.integers(3))
        return self.observation_space.sample(), self.info()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.left -= 1
        value = float(np.mean([np.mean(part) for part in flat(action)]))
        return self.observation_space.sample(), np.tanh(value), self.left == 0, False, self.info()

    def info(self):
        if not isinstance(self.action_space, Discrete | MultiDiscrete):
            return {}
        size = gymnasium.spaces.flatdim(self.action_space)
        mask = self.np_random.integers(2, size=size)
        mask[[0, -1]] = 1  # the last number may have one value left, the first one too
        return {"action_mask": mask}


class Allowed(gymnasium.Wrapper):
    """Refuses what the last mask did not allow."""

    def reset(self, **keywords):
        observation, info = self.env.reset(**keywords)
        self.mask = info["action_mask"]
        return observation, info

    def step(self, action):
        space = self.env.action_space
        hot = gymnasium.spaces.flatten(space, action)
        assert not (hot * (1 - self.mask)).any(), (action, self.mask)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.mask = info["action_mask"]
        return observation, reward, terminated, truncated, info


def flat(action):
    if isinstance(action, dict):
        return [leaf for part in action.values() for leaf in flat(part)]
    return [leaf for part in action for leaf in flat(part)] if isinstance(action, tuple) else [action]


def make(observation, action):
    """An environment of the table."""
    env = Anything(OBSERVATIONS[observation], ACTIONS[action][0])
    return MaskInObservation(Allowed(env)) if action.startswith("masked") else env


def module(observation, action):
    """What acts in it."""
    env = make(observation, action)
    return ACTIONS[action][1](env.observation_space, env.action_space)
