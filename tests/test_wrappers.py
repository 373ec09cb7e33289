"""Gymnasium's own wrappers: what they make is trained on, and members of a group share their start."""

import gymnasium
import numpy as np
import pytest
import torch
from environments import Counting, Lifting
from gymnasium import wrappers
from gymnasium.spaces import Box, Discrete
from space_cases import Anything

from grpolib import GroupSampler, GRPOTrainer, MinibatchPlan, PPOTrainer, check_group_env, network

IMAGE = Box(0, 255, (8, 6, 3), np.uint8)


def film():
    return Anything(IMAGE, Discrete(2))


WRAPPED = {
    "time limit": lambda: wrappers.TimeLimit(Counting(9), 4),
    "time in the observation": lambda: wrappers.TimeAwareObservation(wrappers.TimeLimit(Counting(9), 4)),
    "time beside the observation": lambda: wrappers.TimeAwareObservation(
        wrappers.TimeLimit(Counting(9), 4), flatten=False
    ),
    "stacked": lambda: wrappers.FrameStackObservation(Counting(), 3),
    "stacked images": lambda: wrappers.FrameStackObservation(film(), 2),
    "grey": lambda: wrappers.GrayscaleObservation(film()),
    "grey and stacked": lambda: wrappers.FrameStackObservation(wrappers.GrayscaleObservation(film()), 4),
    "flattened": lambda: wrappers.FlattenObservation(wrappers.FrameStackObservation(Counting(), 3)),
    "reshaped": lambda: wrappers.ReshapeObservation(wrappers.FlattenObservation(film()), (12, 12)),
    "rescaled observations": lambda: wrappers.RescaleObservation(film(), np.float32(0.0), np.float32(1.0)),
    "delayed": lambda: wrappers.DelayObservation(Counting(5), 2),
    "other numbers": lambda: wrappers.DtypeObservation(Counting(), np.float64),
    "transformed": lambda: wrappers.TransformObservation(Counting(), lambda seen: 2 * seen, Counting.observation_space),
    "repeated actions": lambda: wrappers.MaxAndSkipObservation(Counting(9), 2),
    "sticky actions": lambda: wrappers.StickyAction(Counting(9), 0.5),
    "rescaled actions": lambda: wrappers.RescaleAction(Lifting(), 0.0, 1.0),
    "cut actions": lambda: wrappers.ClipAction(Lifting()),
    "cut rewards": lambda: wrappers.ClipReward(Counting(), 0.0, 0.5),
    "statistics of episodes": lambda: wrappers.RecordEpisodeStatistics(Counting()),
    "order is enforced": lambda: wrappers.OrderEnforcing(wrappers.PassiveEnvChecker(Counting())),
}


@pytest.mark.parametrize("make", WRAPPED.values(), ids=list(WRAPPED))
def test_a_wrapped_environment_is_trained_on(make):
    env = make()
    torch.manual_seed(0)
    plan = MinibatchPlan(epochs=1, size=16)
    module = network(env.observation_space, env.action_space, width=8)
    # A warning would say that equal seeds gave unlike starts.
    trainer = GRPOTrainer(module, GroupSampler(make, 2), groups_per_step=2, plan=plan)
    trainer.train(iterations=2)
    assert trainer.num_steps > 4
    PPOTrainer(module, make, num_envs=2, steps=6, plan=plan).train(iterations=1)


def test_the_check_looks_into_nested_observations():
    assert check_group_env(WRAPPED["time beside the observation"]).is_clean

    class Unlike(Anything):
        def reset(self, **keywords):
            observation, info = super().reset(**keywords)
            return {**observation, "inner": np.random.default_rng().random(1, dtype=np.float32)}, info

    space = gymnasium.spaces.Dict(inner=Box(0, 1, (1,)), other=Discrete(2))
    report = check_group_env(lambda: Unlike(space, Discrete(2)))
    assert not report.starts_are_equal
    with pytest.warns(UserWarning, match="different first observations for equal reset seeds"):
        GroupSampler(lambda: Unlike(space, Discrete(2)), 2)


class Wrong(Anything):
    """Gives an observation without one of its parts, or with a number too large."""

    def __init__(self, observation):
        space = gymnasium.spaces.Dict(inner=Box(0, 1, (1,)), other=Discrete(2))
        super().__init__(space, Discrete(2))
        self.given = observation

    def step(self, action):
        return self.given, 0.0, True, False, {}


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"other": 1}, r"Wrong, reset seed \d+, step 0 gave .*its observation space has a part \['inner'\]"),
        ({"inner": np.zeros(1), "other": 2}, r"Wrong, reset seed .* gave 2 for Discrete\(2\): the space has no such"),
        ({"inner": np.zeros(1), "other": 0.5}, r"gave float64 of shape \(\) for Discrete\(2\): expected whole numbers"),
        ({"inner": np.zeros(2), "other": 1}, r"gave an observation of shape \(2,\), its observation space says \(1,\)"),
        ({"inner": np.full(1, np.nan), "other": 1}, r"gave a non-finite observation"),
    ],
)
def test_observations_that_are_not_of_their_space(observation, message):
    module = network(Wrong(None).observation_space, 2)
    with pytest.raises(ValueError, match=message):
        GRPOTrainer(module, lambda: Wrong(observation), group_size=2).train(iterations=1)
