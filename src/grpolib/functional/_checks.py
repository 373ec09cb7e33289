"""Errors for inputs that would broadcast silently or give nonsense."""

from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def check_shape(expected: torch.Size, of: str, **tensors: Tensor) -> None:
    """Raise unless every tensor has the shape of `of`, so that nothing broadcasts."""
    for name, tensor in tensors.items():
        if tensor.shape != expected:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, {of} asks for {list(expected)}: "
                "shapes never broadcast here, so squeeze, index or expand it first."
            )


def check_lengths(lengths: Int[Tensor, " N"], **per_step: Tensor) -> None:
    """Raise unless every length is at least 1 and every per-step tensor is 1-D with their sum of rows."""
    empty = (lengths < 1).nonzero()
    if empty.numel():
        episode = int(empty[0])
        raise ValueError(
            f"lengths[{episode}] is {int(lengths[episode])}: an episode has at least one step; leave it out."
        )
    num_steps = int(lengths.sum())
    check_shape(torch.Size([num_steps]), f"lengths (which sum to {num_steps})", **per_step)


def check_whole(**values: object) -> None:
    """Raise unless every value is a whole number, which a truth value is not."""
    for name, value in values.items():
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{name} is {value!r}: give a whole number.")


def check_whole_or_none(**values: object) -> None:
    """Raise unless every value is a whole number or None."""
    check_whole(**{name: value for name, value in values.items() if value is not None})


def check_number(name: str, value: object) -> None:
    """Raise unless `value` is a real number, which a truth value is not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}: give a number.")


def check_fraction(name: str, value: float) -> None:
    """Raise unless 0 ≤ value ≤ 1."""
    check_number(name, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}: give a number in [0, 1].")


def check_not_negative(name: str, value: float) -> None:
    """Raise unless value ≥ 0."""
    check_number(name, value)
    if not value >= 0:
        raise ValueError(f"{name} is {value}: give a number of at least 0.")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(repr, choices))}.")


def first_not_finite(values: Float[Tensor, " N"], where: Bool[Tensor, " N"] | None = None) -> int | None:
    """Return the row of the first NaN or infinity (among the rows of `where`), or None."""
    bad = ~torch.isfinite(values)
    rows = (bad if where is None else bad & where).nonzero()
    return int(rows[0]) if rows.numel() else None
