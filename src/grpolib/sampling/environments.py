"""Making the environments that a sampler owns."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from numpy.typing import NDArray
from torch import nn

from grpolib.policies.spaces import check_action_space, check_observation_space, observation_parts

Env: TypeAlias = gymnasium.Env[Any, Any]
EnvFactory: TypeAlias = Callable[[], Env]
EnvSource: TypeAlias = str | EnvFactory | Sequence[EnvFactory]
"""An environment's id, a factory, or one factory per group member."""

STATEFUL_WRAPPERS: dict[type[Env], str] = {
    NormalizeObservation: "leave it out and give Normalized(module, observation_space) as the policy",
    NormalizeReward: "leave it out; group estimators divide by a standard deviation anyway, and a critic takes "
    "Critic(ScaledRewards(module))",
}
BLOCK = 8
"""Environments that share a policy call where there is no group."""
TRAINING_SEEDS = 900_000_000
"""Training resets draw from [0, TRAINING_SEEDS); evaluation uses seeds above."""


def make_environments(source: EnvSource, count: int) -> list[Env]:
    """`count` plain environments, each its own, with supported and equal spaces.

    Raises:
        TypeError: `source` is not an id, a factory or a list of factories, or a factory makes something else.
        ValueError: Wrong number of factories, or spaces that differ or are not supported.
        ImportError: The environment needs a package that is not installed.
    """
    environments = [_make(factory) for factory in _factories(source, count)]
    if len({id(environment.unwrapped) for environment in environments}) < count:
        raise ValueError(
            f"the environment factory gave one {environment_name(environments[0])} twice, and each needs its own: make "
            "a new environment in each call"
        )
    first = environments[0]
    check_observation_space(first.observation_space)
    check_action_space(first.action_space)
    _check_wrappers(first)
    for environment in environments[1:]:
        if (environment.observation_space, environment.action_space) != (
            first.observation_space,
            first.action_space,
        ):
            raise ValueError(
                f"environments of a group must have equal spaces: {environment_name(environment)} has "
                f"{environment.observation_space} and {environment.action_space}, the first has "
                f"{first.observation_space} and {first.action_space}"
            )
    return environments


@dataclass(frozen=True)
class EnvironmentDescription:
    """What a sampler has to know of its environments; they themselves may live in other processes."""

    name: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    time_limit: int | None
    reward_threshold: float | None
    resets_repeat: bool
    """Whether one environment gives the same start twice for one seed."""


def describe_environments(source: EnvSource, count: int) -> EnvironmentDescription:
    """Make environments, look at them and close them; raises what `make_environments` raises.

    Of a single factory one environment is made, of a list of them all.
    """
    environments = make_environments(source, count if is_list(source) else 1)
    first = environments[0]
    description = EnvironmentDescription(
        environment_name(first),
        first.observation_space,
        first.action_space,
        None if first.spec is None else first.spec.max_episode_steps,
        _threshold(first),
        _resets_repeat(first),
    )
    for environment in environments:
        environment.close()
    return description


def environment_name(environment: Env) -> str:
    """The id an environment was registered under, else its class."""
    spec = environment.spec
    return spec.id if spec is not None else type(environment.unwrapped).__name__


def _threshold(environment: Env) -> float | None:
    threshold = None if environment.spec is None else environment.spec.reward_threshold
    return None if threshold is None else float(threshold)


def first_observation(environment: Env, seed: int) -> Any:
    """Start an episode.

    Raises:
        ValueError: `reset` does not keep to Gymnasium.
        RuntimeError: It asked Python to exit.
    """
    try:
        with exits_are_errors(f"{environment_name(environment)}.reset(seed={seed})"):
            observation, _ = environment.reset(seed=seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{environment_name(environment)}.reset(seed={seed}) failed with {error}: it must take seed=, and return "
            "an observation and a dictionary"
        ) from error
    return observation


@contextmanager
def exits_are_errors(place: str) -> Generator[None, None, None]:
    """Turn what `sys.exit` raises into an error that says where: it would end a run in silence."""
    try:
        yield
    except SystemExit as exit:
        raise RuntimeError(f"{place} asked Python to exit ({exit.code!r})") from exit


def _resets_repeat(environment: Env) -> bool:
    first, again = (_parts_of(environment, first_observation(environment, 0)) for _ in range(2))
    return all(
        one.dtype.kind not in "biuf" or np.array_equal(one, other, equal_nan=True)
        for one, other in zip(first, again, strict=True)
    )


def _parts_of(environment: Env, observation: Any) -> list[NDArray[Any]]:
    """Copies of an observation's parts; none where it is not of the space, which is refused where an episode starts."""
    try:
        return [np.array(part.of(observation)) for part in observation_parts(environment.observation_space)]
    except ValueError:
        return []


def _check_wrappers(environment: Env) -> None:
    """Raise for statistics that would differ between the members of a group, and would not travel with the policy."""
    while isinstance(environment, gymnasium.Wrapper):
        updates = getattr(environment, "update_running_mean", False)
        for kind, instead in STATEFUL_WRAPPERS.items():
            if isinstance(environment, kind) and updates:
                raise ValueError(
                    f"{kind.__name__} keeps statistics of its own in each environment, so that members of a group and "
                    f"workers would see different scales: {instead}"
                )
        environment = environment.env


def is_list(source: EnvSource) -> TypeGuard[Sequence[EnvFactory]]:
    """Whether there is one factory per environment."""
    return isinstance(source, Sequence) and not isinstance(source, str)


def _factories(source: EnvSource, count: int) -> list[EnvFactory]:
    if isinstance(source, str):
        return [partial(gymnasium.make, source, disable_env_checker=True)] * count
    if is_list(source):
        if len(source) != count:
            raise ValueError(f"{len(source)} environment factories for {count} members: give one per member")
        return list(source)
    if isinstance(source, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise TypeError(
            f"{source} is one environment, and each member of a group needs its own: give an id or a factory, "
            f"for instance lambda: gymnasium.make('CartPole-v1'){_why_no_vector(source)}"
        )
    if isinstance(source, nn.Module):
        raise TypeError(f"{type(source).__name__} is a module where an environment belongs: the policy comes first")
    if not callable(source):
        raise TypeError(
            f"an environment is given as an id or a factory, got {type(source).__module__}.{type(source).__name__}"
            + ("; it must be a Gymnasium environment (not the old gym)" if hasattr(source, "step") else "")
        )
    return [source] * count


def _make(factory: EnvFactory) -> Env:
    if not callable(factory):
        raise TypeError(f"environment factories are callables without arguments, got {factory!r}")
    try:
        environment = factory()
    except DependencyNotInstalled as error:
        extra = "box2d" if "box2d" in str(error).lower() else None
        command = f'pip install "grpolib[{extra}]"' if extra else str(error)
        raise ImportError(f"the environment needs a package that is not installed: {command}") from error
    if isinstance(environment, gymnasium.Env):
        return environment
    raise TypeError(
        f"the environment factory made a {type(environment).__module__}.{type(environment).__name__}: it must "
        f"make a plain gymnasium.Env (not a vector environment, not the old gym){_why_no_vector(environment)}"
    )


def _why_no_vector(environment: Any) -> str:
    if not isinstance(environment, gymnasium.vector.VectorEnv):
        return ""
    return (
        ". A vector environment resets its members on its own, and a group needs episodes that start from one seed and "
        "end by themselves: give the factory of a single one, and workers= for processes"
    )
