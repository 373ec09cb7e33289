"""Small environments: well-behaved ones that end after a few steps, and ones that misbehave in one way each."""

import math
import random
import warnings

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

with warnings.catch_warnings():
    # Its SWIG types warn while they are made, and a warning turned into an error there ends the whole process.
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401


def box(*shape, low=-np.inf, high=np.inf, dtype=np.float32):
    return Box(low, high, shape, dtype)


class Counting(gymnasium.Env):
    """Observes [context, steps taken]; reward 1 a step; ends after `length` steps. The context is drawn at reset.

    It refuses what a sampler must never do: an action that is no plain int, a step before a reset or after an end.
    """

    observation_space = box(2)
    action_space = Discrete(2)

    def __init__(self, length=3, *, truncates=False, terminates=True):
        self.length, self.truncates, self.terminates = length, truncates, terminates
        self.running = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.running = 0, True
        self.context = float(self.np_random.random())
        return self.observation(), {}

    def step(self, action):
        assert self.running, "stepped while no episode runs"
        assert type(action) is int, f"got a {type(action).__name__}"
        assert self.action_space.contains(action)
        self.time += 1
        ended = self.ended(action)
        self.running = not ended
        return self.observation(), self.reward(action), ended and self.terminates, ended and self.truncates, {}

    def ended(self, action):
        return self.time >= self.length

    def reward(self, action):
        return 1.0

    def observation(self):
        return np.array([self.context, self.time], dtype=np.float32)


class Quitting(Counting):
    """Action 1 ends the episode, so that the members of a group differ in length; the reward is the step's number."""

    def ended(self, action):
        return action == 1 or self.time >= self.length

    def reward(self, action):
        return float(self.time)


class Bandit(Counting):
    """Three contexts and three arms, one step: the reward is 1 for the arm that has the context's number."""

    observation_space = box(3)
    action_space = Discrete(3)

    def __init__(self):
        super().__init__(length=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.arm = int(self.np_random.integers(3))
        return self.observation(), {}

    def observation(self):
        return np.eye(3, dtype=np.float32)[getattr(self, "arm", 0)]

    def reward(self, action):
        return float(action == self.arm)


class Lifting(gymnasium.Env):
    """A two-dimensional action within [-1, 1]; the reward is minus its distance from (0.5, -0.5). Two steps."""

    observation_space = box(1)
    action_space = Box(-1.0, 1.0, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.time += 1
        reward = -float(np.abs(action - np.array([0.5, -0.5])).sum())
        return np.full(1, self.time, dtype=np.float32), reward, self.time == 2, False, {}


class Sent(gymnasium.Wrapper):
    """Keeps what the environment was given: reset seeds, and the actions of each episode."""

    def __init__(self, env):
        super().__init__(env)
        self.seeds, self.episodes = [], []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.episodes.append([])
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        self.episodes[-1].append(np.copy(action) if isinstance(action, np.ndarray) else action)
        return self.env.step(action)


class SameArray(Counting):
    """Gives one and the same array at every step, changed in place."""

    def __init__(self, length=3):
        super().__init__(length)
        self.array = np.zeros(2, dtype=np.float32)

    def observation(self):
        self.array[:] = self.context, self.time
        return self.array


class ActionEater(gymnasium.Env):
    """Overwrites the action that it is given."""

    observation_space = box(1)
    action_space = box(1, low=-1.0, high=1.0)

    def __init__(self, action_space=None):
        self.action_space = action_space or self.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        action[:] = 77.0
        self.time += 1
        return np.zeros(1, dtype=np.float32), 0.0, self.time == 3, False, {}


class Unseeded(Counting):
    """Draws its start from Python's global generator, whatever the seed."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.context = random.random()
        return self.observation(), {}


class GivesReward(Counting):
    """Gives `value` as the reward of step `at`."""

    def __init__(self, value, at=1):
        super().__init__()
        self.value, self.at = value, at

    def reward(self, action):
        return self.value if self.time - 1 == self.at else 1.0


class Diverges(Quitting):
    """Gives NaN from the second step on, in episodes whose context is above one half: as reward or as observation."""

    def __init__(self, *, reward=math.nan, observed=0.0):
        super().__init__()
        self.bad_reward, self.observed = reward, observed

    def is_bad(self):
        return self.context > 0.5 and self.time >= 2

    def ended(self, action):
        return self.time >= 3 if self.context > 0.5 else super().ended(action)

    def reward(self, action):
        return self.bad_reward if self.is_bad() else super().reward(action)

    def observation(self):
        return super().observation() + np.float32(self.observed if self.is_bad() else 0.0)


class GivesObservation(Counting):
    """Gives `value` as the observation after `at` steps, whatever the observation space says."""

    def __init__(self, value, at=2):
        super().__init__()
        self.value, self.at = value, at

    def observation(self):
        return self.value if self.time == self.at else super().observation()


class NumpyScalars(Counting):
    """Rewards as np.float64 and 0-d arrays, flags as np.bool_, observations as float64."""

    def reward(self, action):
        return np.float64(0.5) if self.time == 1 else np.array(0.5)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation.astype(np.float64), reward, np.bool_(terminated), np.bool_(truncated), info


class Pixels(Counting):
    """Observes a uint8 image."""

    observation_space = Box(0, 255, (2, 2), np.uint8)

    def observation(self):
        return np.full((2, 2), 250 + self.time, dtype=np.uint8)


class OldGym:
    """Looks like an environment, but is no gymnasium.Env."""

    observation_space = Counting.observation_space
    action_space = Counting.action_space

    def reset(self):
        return np.zeros(2)

    def step(self, action):
        return np.zeros(2), 0.0, True, {}
