"""The border to Gymnasium: observations become tensors, actions become what an environment takes."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor


def check_action_space(space: gymnasium.Space[Any]) -> None:
    """Raise where no policy of this library can act in `space`."""
    if isinstance(space, Discrete):
        return
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return
    raise ValueError(
        f"action space {space} is not supported: use Discrete or a floating-point Box, for instance through "
        "gymnasium.wrappers.TransformAction"
    )


def check_observation_space(space: gymnasium.Space[Any]) -> None:
    """Raise where observations of `space` cannot become one tensor."""
    if not isinstance(space, Box):
        raise ValueError(
            f"observation space {space} is not supported: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation, which makes it a Box"
        )


def observation_dtype(space: gymnasium.Space[Any]) -> type[np.generic]:
    """How observations are stored: images stay uint8, everything else becomes float32."""
    return np.uint8 if space.dtype == np.uint8 else np.float32


def environment_actions(actions: Tensor, space: gymnasium.Space[Any]) -> Sequence[Any]:
    """Sampled actions [n, ...] as the environment takes them.

    Discrete: a plain int, counted from the space's start. Box: clipped to the bounds, in the space's dtype;
    the batch keeps the action as it was sampled, so that its log-probability stays the right one.

    Raises:
        ValueError: Actions that are none of the space's, or of another shape.
    """
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
    raise ValueError(f"action space {space} is not supported")
