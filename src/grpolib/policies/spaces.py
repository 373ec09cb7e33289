"""The border to Gymnasium: observations become trees of tensors, actions become what an environment takes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray
from torch import Tensor

from grpolib.trees import Tree


def check_action_space(space: gymnasium.Space[Any]) -> None:
    """Raise where no policy of this library can act in `space`."""
    for part in _leaves(space):
        is_integer_box = isinstance(part, Box) and not np.issubdtype(part.dtype, np.floating)
        if is_integer_box or not isinstance(part, Box | Discrete | MultiBinary | MultiDiscrete):
            raise ValueError(
                f"action space {part} is not supported: use Discrete, MultiDiscrete, MultiBinary, a floating-point "
                "Box, or a Dict or Tuple of them, for instance through gymnasium.wrappers.TransformAction"
            )


def check_observation_space(space: gymnasium.Space[Any]) -> None:
    """Raise where observations of `space` cannot become a tree of tensors."""
    for part in _leaves(space):
        if not isinstance(part, Box | Discrete | MultiBinary | MultiDiscrete):
            raise ValueError(
                f"observation space {part} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary, or a "
                "Dict or Tuple of them, for instance through gymnasium.wrappers.TransformObservation"
            )


def is_image(space: gymnasium.Space[Any]) -> TypeGuard[Box]:
    """Whether observations are images: uint8, of two or three dimensions, or several of them stacked."""
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)


def parts_of(space: gymnasium.Space[Any]) -> dict[Any, gymnasium.Space[Any]]:
    """The parts of a Dict or Tuple by name or place; none of any other space."""
    if isinstance(space, Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, Tuple) else {}


def observation_dtype(space: gymnasium.Space[Any]) -> type[np.generic]:
    """How observations are stored: images stay uint8, everything else becomes float32."""
    return np.uint8 if space.dtype == np.uint8 and isinstance(space, Box) else np.float32


def observation_shape(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """The shape of one observation as it is stored: whole numbers are one-hot, several of them side by side."""
    if isinstance(space, Discrete | MultiDiscrete):
        return (sum(choices(space)),)
    return tuple(space.shape or ())


class ObservationPart(NamedTuple):
    """A leaf of an observation space: the keys on the way to it, and its space."""

    keys: tuple[Any, ...]
    space: gymnasium.Space[Any]

    def of(self, observation: Any) -> NDArray[Any]:
        """This part of an observation, as it is stored but for its type.

        Raises:
            ValueError: There is no such part, or a number that the space does not have.
        """
        return self.stored(self.given(observation))

    def given(self, observation: Any) -> NDArray[Any]:
        """This part of an observation, or of a batch of them, as the environment gave it."""
        try:
            return np.asarray(reduce(getitem, self.keys, observation))
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{observation!r}, its observation space has a part {list(self.keys)}") from None

    def stored(self, given: NDArray[Any]) -> NDArray[Any]:
        """A part that was given, with whole numbers one-hot."""
        return _one_hot(given, self.space) if isinstance(self.space, Discrete | MultiDiscrete) else given


def observation_parts(space: gymnasium.Space[Any], keys: tuple[Any, ...] = ()) -> Iterator[ObservationPart]:
    """The leaves of an observation space, in the order of the space."""
    if isinstance(space, Dict | Tuple):
        for key, part in parts_of(space).items():
            yield from observation_parts(part, (*keys, key))
    else:
        yield ObservationPart(keys, space)


def as_tree(space: gymnasium.Space[Any], parts: Iterator[Any]) -> Any:
    """One thing for each leaf of the space, in the form of the space."""
    if isinstance(space, Dict):
        return {key: as_tree(part, parts) for key, part in parts_of(space).items()}
    if isinstance(space, Tuple):
        return tuple(as_tree(part, parts) for part in parts_of(space).values())
    return next(parts)


def environment_actions(actions: Tree, space: gymnasium.Space[Any]) -> Sequence[Any]:
    """Sampled actions [n, ...] as the environment takes them.

    Discrete: a plain int, counted from the space's start; MultiDiscrete and MultiBinary: arrays, likewise. Box: clipped
    to the bounds, in the space's dtype; the batch keeps the action as it was sampled, so that its log-probability
    stays the right one. Dict and Tuple: of their parts.

    Raises:
        ValueError: Actions that are none of the space's, or of another shape.
    """
    if isinstance(space, Dict | Tuple):
        return _nested(actions, space)
    if not isinstance(actions, Tensor):
        raise ValueError(f"the policy gave a {type(actions).__name__} for {space}: expected a tensor, one row each")
    if isinstance(space, Discrete):
        start, number = int(space.start), int(space.n)
        chosen = actions.tolist()
        if actions.ndim != 1 or not all(isinstance(action, int) and 0 <= action < number for action in chosen):
            raise ValueError(
                f"the policy gave actions {chosen} for {space}: expected whole numbers from 0 to {number - 1}"
            )
        return [start + action for action in chosen]
    if isinstance(space, Box):
        if actions.shape[1:] != space.shape:
            raise ValueError(f"the policy gave actions of shape {tuple(actions.shape)} for {space}: one row each")
        clipped: NDArray[Any] = np.clip(actions.numpy(force=True), space.low, space.high).astype(space.dtype)
        return list(clipped)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return _several(actions.numpy(force=True), space)
    raise ValueError(f"action space {space} is not supported")


def choices(space: gymnasium.Space[Any]) -> list[int]:
    """How many values each number of a space of whole numbers has."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return [int(count) for count in space.nvec.flatten()]
    return [2] * math.prod(space.shape or ())


def _several(actions: NDArray[Any], space: MultiDiscrete | MultiBinary) -> list[Any]:
    counts = np.array(choices(space))
    rows = actions.reshape(len(actions), -1)
    if rows.shape[1] != len(counts) or rows.dtype.kind not in "iu" or bool(((rows < 0) | (rows >= counts)).any()):
        raise ValueError(
            f"the policy gave actions {actions.tolist()} for {space}: expected {len(counts)} whole numbers each, from 0"
        )
    start = space.start if isinstance(space, MultiDiscrete) else 0
    return list((rows.reshape(-1, *space.shape) + start).astype(space.dtype))


def _one_hot(values: NDArray[Any], space: Discrete | MultiDiscrete) -> NDArray[Any]:
    """The number that is meant is 1, all others are 0."""
    counts = np.array(choices(space))
    if values.shape != space.shape or values.dtype.kind not in "iu":
        raise ValueError(f"{values.dtype} of shape {values.shape} for {space}: expected whole numbers")
    numbers = (values - space.start).reshape(-1)
    if bool(((numbers < 0) | (numbers >= counts)).any()):
        raise ValueError(f"{values.tolist()} for {space}: the space has no such number")
    hot = np.zeros(int(counts.sum()), dtype=np.float32)
    hot[numbers + np.concatenate([[0], counts.cumsum()[:-1]])] = 1.0
    return hot


def _leaves(space: gymnasium.Space[Any]) -> Iterator[gymnasium.Space[Any]]:
    """What is no Dict or Tuple; an empty one is a leaf itself, and is refused as one."""
    for part in parts_of(space).values():
        yield from _leaves(part)
    if not parts_of(space):
        yield space


def _nested(actions: Any, space: gymnasium.Space[Any]) -> list[Any]:
    """Actions of a Dict as dictionaries, of a Tuple as tuples."""
    given: Any = actions if isinstance(actions, Mapping) else dict(enumerate(actions))
    parts = parts_of(space)
    if given.keys() != parts.keys():
        raise ValueError(f"the policy gave actions {sorted(given)} for {space}: one part for each of its parts")
    rows = zip(*(environment_actions(given[key], part) for key, part in parts.items()), strict=True)
    return [dict(zip(parts, row, strict=True)) for row in rows] if isinstance(space, Dict) else list(rows)
