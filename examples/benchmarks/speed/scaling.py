"""Part scaling: group size and episode length."""

import argparse
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np

import grpolib as gl
from grpolib import TimestepLeaveOneOut, mlp
from grpolib.sampling.rollout import one_torch_thread
from speed.rates import LANDER
from speed.turns import Call, Table, in_turns, medians, seconds_of


class FixedLength(gymnasium.Env[Any, Any]):
    """Episodes of one length in which nothing is computed: what is left is the sampler's own work."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, length: int) -> None:
        self.length, self.time, self.observation = length, 0, np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self.observation, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation, float(action), self.time == self.length, False, {}


def sampling_speed(source: Any, group_size: int, length: int, steps: int) -> dict[str, float]:
    sampler, batches = gl.GroupSampler(source, group_size), []
    policy = gl.as_policy(mlp(8, 64, 64, 4), sampler.action_space)
    num_groups = max(1, steps // (group_size * length))
    sampler.sample(policy, 1, np.random.SeedSequence(0))
    seconds = seconds_of(lambda: batches.append(sampler.sample(policy, num_groups, np.random.SeedSequence(1))))
    batch, speed = batches[0], {}
    with one_torch_thread():
        for estimator in (gl.GroupZScore(), TimestepLeaveOneOut()):
            turns = [seconds_of(partial(estimator, batch)) for _ in range(5)]
            speed[f"{type(estimator).__name__} [ns/step]"] = median(turns) / batch.num_steps * 1e9
    mean_length = batch.num_steps / batch.num_episodes
    return {"steps": batch.num_steps, "mean length": mean_length, "steps/s": batch.num_steps / seconds, **speed}


def scaling(settings: argparse.Namespace) -> dict[str, Table]:
    cases: list[tuple[str, int, int]] = [("fixed length", size, 256) for size in (4, 16, 64, 256)]
    cases += [("fixed length", 16, length) for length in (64, 1024, 4096)]
    cases += [(LANDER, size, 100) for size in (4, 16, 64, 256)]
    contenders: dict[str, Call] = {}
    for name, size, length in cases:
        source = LANDER if name == LANDER else partial(FixedLength, length)
        contenders[f"{name} {size} {length}"] = partial(sampling_speed, source, size, length, settings.measure_steps)
    raw = in_turns(contenders, settings.repeats)
    records = zip(cases, raw.values(), strict=True)
    rows = [{"environment": name, "group size": size, **medians(turns)} for (name, size, _), turns in records]
    note = (
        f"In one process, about {settings.measure_steps:,} steps of a policy as it starts, at least one group; median "
        f"of {settings.repeats} turns. In the environment of fixed length nothing is computed."
    )
    return {"scaling": Table(note, rows, raw)}
