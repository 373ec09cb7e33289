"""Does an environment suit a group baseline? Questions, answers, and what each answer means."""

import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.policies.spaces import observation_parts
from grpolib.sampling.environments import Env, EnvSource, environment_name, exits_are_errors, make_environments

MEANINGS = {
    "starts_are_equal": (
        "Members of a group start from the same state, so the group compares what they did.",
        "Equal seeds give unlike starts: a group's baseline then compares unlike episodes and is only noisier, "
        "never wrong on average. Draw everything in reset from self.np_random.",
    ),
    "resets_are_complete": (
        "An episode does not depend on the one before it.",
        "A second reset with the same seed starts elsewhere: something survives reset. Clear it there.",
    ),
    "episodes_are_equal": (
        "Equal seeds and actions give equal episodes: members differ by their actions alone.",
        "Equal seeds and actions give unlike episodes: returns within a group also differ by luck, which the "
        "baseline cannot remove.",
    ),
    "has_no_global_randomness": (
        "The global generators of Python, NumPy and torch are neither read nor changed.",
        "A global generator is used: results depend on what else runs in the process, and on the number of "
        "workers. Use self.np_random.",
    ),
    "has_fresh_arrays": (
        "Every observation is an array of its own.",
        "One array is returned again and again. The samplers here copy, so nothing breaks; other code may keep "
        "references that change under it.",
    ),
}


@dataclass(frozen=True)
class GroupEnvReport:
    """What `check_group_env` found; `str()` explains each answer.

    Attributes:
        name: The environment.
        starts_are_equal: Two environments reset with one seed give the same observation.
        resets_are_complete: One environment, reset with one seed before and after another episode, does too.
        episodes_are_equal: Then equal actions give equal observations, rewards and ends.
        has_no_global_randomness: The global generators are neither read nor changed.
        has_fresh_arrays: No observation is a changed version of an earlier one's memory.
    """

    name: str
    starts_are_equal: bool
    resets_are_complete: bool
    episodes_are_equal: bool
    has_no_global_randomness: bool
    has_fresh_arrays: bool

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return all(getattr(self, question) for question in MEANINGS)

    def __str__(self) -> str:
        lines = [self.name]
        for question, (good, bad) in MEANINGS.items():
            answer = getattr(self, question)
            lines.append(f"  {'yes' if answer else 'NO ':4}{question.replace('_', ' ')}: {good if answer else bad}")
        return "\n".join(lines)


class Trace(NamedTuple):
    """An episode as it was seen: copies of the observations, the rewards, and how it ended."""

    observations: list[list[NDArray[Any]]]
    rewards: list[float]
    ended: bool
    reuses_memory: bool


def check_group_env(env: EnvSource, *, seed: int = 0, steps: int = 200) -> GroupEnvReport:
    """Run a few episodes of an environment and report how well it suits a group baseline.

    A finding never raises; an environment that cannot be made or run does. The global generators are put
    back as they were.

    Args:
        env: An id or a factory.
        seed: Of the resets and the actions.
        steps: Longest episode to look at.
    """
    with _global_generators_kept():
        first, second = make_environments(env, 2)
        try:
            actions = _actions(first, seed, steps)
            one = _played(first, seed, actions, globals_seed=1)
            used_globals = _globals_changed(lambda: _play(first, seed + 1, actions))
            again = _played(first, seed, actions, globals_seed=1)
            other_globals = _played(first, seed, actions, globals_seed=2)
            twin = _played(second, seed, actions, globals_seed=2)
        finally:
            first.close()
            second.close()
    return GroupEnvReport(
        name=environment_name(first),
        starts_are_equal=_starts_equal(one, twin),
        resets_are_complete=_starts_equal(one, again),
        episodes_are_equal=_equal(one, twin) and _equal(one, again),
        has_no_global_randomness=not used_globals and (not _equal(one, again) or _equal(one, other_globals)),
        has_fresh_arrays=not one.reuses_memory,
    )


def _actions(environment: Env, seed: int, steps: int) -> list[Any]:
    environment.action_space.seed(seed)
    actions = [environment.action_space.sample() for _ in range(steps)]
    # A plain int, as the samplers give it: some environments take nothing else.
    return [action.item() if isinstance(action, np.integer) else action for action in actions]


def _played(environment: Env, seed: int, actions: list[Any], *, globals_seed: int) -> Trace:
    _seed_globals(globals_seed)
    with exits_are_errors(f"{environment_name(environment)}, reset seed {seed}"):
        return _play(environment, seed, actions)


def _play(environment: Env, seed: int, actions: list[Any]) -> Trace:
    parts = list(observation_parts(environment.observation_space))
    raw, _ = environment.reset(seed=seed)
    observations, rewards, reuses_memory = [[np.array(part.given(raw)) for part in parts]], [], False
    given: list[NDArray[Any]] = []
    for action in actions:
        given += [part.given(raw) for part in parts]
        raw, reward, terminated, truncated, _ = environment.step(action)
        seen = [part.given(raw) for part in parts]
        reuses_memory |= any(np.may_share_memory(one, earlier) for one in seen for earlier in given)
        observations.append([np.array(one) for one in seen])
        rewards.append(float(reward))
        if terminated or truncated:
            return Trace(observations, rewards, True, reuses_memory)
    return Trace(observations, rewards, False, reuses_memory)


def _starts_equal(one: Trace, other: Trace) -> bool:
    return _same(one.observations[0], other.observations[0])


def _same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def _equal(one: Trace, other: Trace) -> bool:
    return (
        np.array_equal(one.rewards, other.rewards, equal_nan=True)
        and one.ended == other.ended
        and all(_same(a, b) for a, b in zip(one.observations, other.observations, strict=True))
    )


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the global generator is what is being looked for
    torch.manual_seed(seed)


def _globals_state() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy_state, torch.random.get_rng_state()


def _globals_changed(run: Any) -> bool:
    python, numpy, tensor = _globals_state()
    run()
    python_after, numpy_after, tensor_after = _globals_state()
    return (
        python != python_after
        or any(not np.array_equal(a, b) for a, b in zip(numpy, numpy_after, strict=True))
        or not torch.equal(tensor, tensor_after)
    )


@contextmanager
def _global_generators_kept() -> Generator[None, None, None]:
    python, numpy, tensor = _globals_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.random.set_rng_state(tensor)
