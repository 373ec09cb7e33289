"""Observations with mean 0 and standard deviation 1, by statistics that travel with the policy."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import gymnasium
import torch
from gymnasium.spaces import Box
from jaxtyping import Float
from torch import Tensor, nn

from grpolib.policies.recurrent import check_memoryless
from grpolib.policies.spaces import as_tree, check_observation_space, is_image, observation_parts, observation_shape
from grpolib.trees import Tree, tree_map

LARGEST, EPSILON = 10.0, 1e-8
"""Normalised observations lie within ± the one; the other is added to the variance."""


class Normalized(nn.Module):
    """A module whose observations are centred and divided by their standard deviation, over all steps of training.

    The statistics are buffers, so they are in every file and in every worker. Like a batch norm's, they change in
    training mode alone; but a policy is in evaluation mode whenever it acts or is scored, and takes in a batch once it
    was learnt from: all log-probabilities of an iteration come from one and the same function.

    Args:
        module: Called with the normalised observations.
        observation_space: Box parts are normalised; images, and parts of whole numbers, stay as they are.

    Raises:
        TypeError: A `Recurrent` module, whose encoder is the one to normalise for.
        ValueError: A space that is not supported.
    """

    def __init__(self, module: nn.Module, observation_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        check_memoryless(module, "Normalized", "give Recurrent(Normalized(encoder, observation_space), memory, head)")
        check_observation_space(observation_space)
        self.module = module
        self._space = observation_space
        parts = [part.space for part in observation_parts(observation_space)]
        self.statistics = nn.ModuleList(
            RunningStatistics(observation_shape(part))
            if isinstance(part, Box) and not is_image(part)
            else nn.Identity()
            for part in parts
        )

    def forward(self, observations: Tree) -> Any:
        """What the module makes of the normalised observations."""
        statistics = as_tree(self._space, iter(self.statistics))
        return self.module(tree_map(lambda of_part, part: of_part(part), statistics, observations))


class RunningStatistics(nn.Module):
    """Mean and standard deviation of all rows that were taken in, in float64.

    Source: Chan, Golub and LeVeque (1979), Updating formulae and a pairwise algorithm.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, rows: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        """Normalised rows; in training mode they are taken in first."""
        if self.training:
            self.take_in(rows)
        return ((rows - self.shift) * self.scale).clamp(-LARGEST, LARGEST)

    @torch.no_grad()
    def take_in(self, rows: Float[Tensor, "n ..."]) -> None:
        """Add n rows."""
        values = rows.double()
        mean = values.mean(0)
        count = self.count + len(values)
        shift = mean - self.mean
        self.squares += (values - mean).square().sum(0) + shift.square() * (self.count * len(values) / count)
        self.mean += shift * (len(values) / count)
        self.count.copy_(count)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.squares / count + EPSILON).rsqrt())


def observation_statistics(modules: Iterable[nn.Module]) -> list[RunningStatistics]:
    """Those of each `Normalized` among the modules."""
    normalized = [module for module in modules if isinstance(module, Normalized)]
    return [part for module in normalized for part in module.statistics if isinstance(part, RunningStatistics)]


@contextmanager
def taking_in(statistics: Iterable[RunningStatistics]) -> Generator[None, None, None]:
    """What passes through them is taken in."""
    for one in statistics:
        one.training = True
    try:
        yield
    finally:
        for one in statistics:
            one.training = False
