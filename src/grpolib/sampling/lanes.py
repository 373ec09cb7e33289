"""Environments side by side, in step; what they give is checked and copied here."""

import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.policies.spaces import ObservationPart, as_tree, observation_dtype, observation_parts, observation_shape
from grpolib.sampling.environments import Env, environment_name, first_observation
from grpolib.trees import Tree


class NotFiniteError(ValueError):
    """A reward or an observation is not finite: the numbers of one episode are bad, not the environment's form."""


class Outcome(NamedTuple):
    """Of one step in n environments: rewards, and how episodes ended."""

    rewards: NDArray[np.float32]
    terminated: list[bool]
    truncated: list[bool]


class _Part:
    """One part of the observations: an array with one row an environment."""

    def __init__(self, part: ObservationPart, count: int) -> None:
        self._of = part
        self._shape = observation_shape(part.space)
        self.rows = np.zeros((count, *self._shape), dtype=observation_dtype(part.space))

    def keep(self, observation: Any, member: int) -> None:
        """Copy an observation's part to its row."""
        array = self._of.of(observation)
        if array.shape != self._shape:
            raise ValueError(f"an observation of shape {array.shape}, its observation space says {self._shape}")
        if array.dtype.kind not in "biuf":
            raise ValueError(f"an observation of {array.dtype}: observations are numbers")
        if self.rows.dtype == np.uint8 and array.dtype != np.uint8 and not (array == array.astype(np.uint8)).all():
            raise ValueError(f"an observation of {array.dtype} that no bytes hold, its observation space says uint8")
        if array.dtype is self.rows.dtype:
            self.rows[member] = array
        else:
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
                self.rows[member] = array


def _amount(outcome: Any) -> str:
    return f"{len(outcome)} things" if isinstance(outcome, tuple | list) else repr(outcome)


class Lanes:
    """A few environments with their present observations.

    Observations are copied, since an environment may return the same array again and again, and become float32
    (images stay uint8), each part of a nested one in an array of its own. Anything not finite, or of another shape
    than the space says, raises.

    Args:
        environments: Plain environments with equal spaces.
    """

    def __init__(self, environments: Sequence[Env]) -> None:
        self.environments = environments
        space = environments[0].observation_space
        self._space = space
        self._parts = [_Part(part, len(environments)) for part in observation_parts(space)]
        self.seeds = [0] * len(environments)
        self.times = [0] * len(environments)

    def reset(self, member: int, seed: int) -> None:
        """Start an episode."""
        self.seeds[member] = seed
        self.times[member] = 0
        observation = self._asked(member, first_observation, self.environments[member], seed)
        self._keep(observation, member)
        self._check_finite([member], np.zeros(1))

    def step(self, members: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Take one action each in some of the environments."""
        rewards, ends, cuts = [], [], []
        for member, action in zip(members, actions, strict=True):
            outcome = self._asked(member, self.environments[member].step, action)
            if not isinstance(outcome, tuple | list) or len(outcome) != 5:
                raise ValueError(
                    f"{self.where(member)} gave {_amount(outcome)} from step: a Gymnasium environment gives "
                    "observation, reward, terminated, truncated and info"
                )
            observation, reward, terminated, truncated, _ = outcome
            rewards.append(self._number(reward, member))
            self._keep(observation, member)
            ends.append(self._flag(terminated, "terminated", member))
            cuts.append(self._flag(truncated, "truncated", member))
        with np.errstate(over="ignore", invalid="ignore"):
            stored = np.array(rewards).astype(np.float32)
            # Finite sums have finite terms; one that overflowed is looked into.
            if not math.isfinite(stored.sum() + sum(part.rows.sum() for part in self._parts)):
                self._check_finite(members, stored)
        for member in members:
            self.times[member] += 1
        return Outcome(stored, ends, cuts)

    def _asked(self, member: int, question: Callable[..., Any], *arguments: Any) -> Any:
        """An environment's answer; what it raises says where, and an exit, which would end a run in silence, is one."""
        try:
            return question(*arguments)
        except SystemExit as exit:
            raise RuntimeError(f"{self.where(member)} asked Python to exit ({exit.code!r})") from exit
        except Exception as error:
            if sys.version_info >= (3, 11):  # exceptions had no notes before
                error.add_note(f"raised in {self.where(member)}")
            raise

    def _number(self, reward: Any, member: int) -> float:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(reward, str | bytes):
            raise ValueError(f"{self.where(member)} gave reward {reward!r}: a reward is a number")
        return number

    def _flag(self, value: Any, name: str, member: int) -> bool:
        # `is` before `==`, which an array answers with an array.
        if value is True or value is False or (np.ndim(value) == 0 and value in (0, 1)):
            return bool(value)
        raise ValueError(f"{self.where(member)} gave {name}={value!r}: it is True or False")

    def observations(self, members: Sequence[int]) -> Tree:
        """The present observations of some environments, copied."""
        rows = (torch.from_numpy(part.rows.take(members, axis=0)) for part in self._parts)
        return as_tree(self._space, rows)

    def observation_checksum(self, member: int) -> str:
        """Of the bits of a present observation."""
        return hashlib.sha256(b"".join(part.rows[member].tobytes() for part in self._parts)).hexdigest()

    def _keep(self, observation: Any, member: int) -> None:
        """Copy an observation to its place."""
        try:
            for part in self._parts:
                part.keep(observation, member)
        except ValueError as error:
            raise ValueError(f"{self.where(member)} gave {error}") from None

    def _check_finite(self, members: Sequence[int], rewards: NDArray[Any]) -> None:
        for member, reward in zip(members, rewards.tolist(), strict=True):
            if not math.isfinite(reward):
                raise NotFiniteError(f"{self.where(member)} gave reward {reward}: rewards must be finite")
            for part in self._parts:
                if not np.isfinite(part.rows[member]).all():
                    raise NotFiniteError(
                        f"{self.where(member)} gave a non-finite observation: {part.rows[member]}; clip or replace it "
                        "in a wrapper"
                    )

    def where(self, member: int) -> str:
        """Which episode and step a member is at, in words."""
        return (
            f"{environment_name(self.environments[member])}, reset seed {self.seeds[member]}, step {self.times[member]}"
        )
