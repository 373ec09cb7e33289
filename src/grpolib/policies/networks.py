"""A small network that works out of the box."""

import math
from itertools import pairwise
from typing import cast

import torch
from torch import nn


def mlp(*sizes: int, seed: int = 0) -> nn.Sequential:
    """Tanh layers with orthogonal weights and zero biases, the usual start of PPO.

    Hidden layers have gain sqrt(2). The head has gain 0.01, so that a policy starts near uniform; a head of
    one output is a value head and has gain 1.

    Args:
        sizes: Inputs, hidden widths, outputs: `mlp(8, 64, 64, 4)` has two hidden layers of 64. Outputs are
            the number of actions of a Discrete space, or twice the dimensions of a Box (mean, log std).
        seed: Of its own generator; the global ones are neither used nor changed.

    Raises:
        ValueError: Fewer than two sizes, or one below 1.

    >>> sum(parameter.numel() for parameter in mlp(8, 64, 64, 4).parameters())
    4996
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"mlp needs at least an input and an output size, each >= 1; got {sizes}")
    rng = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [_linear(inputs, outputs, math.sqrt(2), rng), nn.Tanh()]
    head_gain = 1.0 if sizes[-1] == 1 else 0.01
    return nn.Sequential(*layers, _linear(sizes[-2], sizes[-1], head_gain, rng))


def _linear(inputs: int, outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    # skip_init: nn.Linear's own initialisation would draw from the global generator.
    layer = cast(nn.Linear, torch.nn.utils.skip_init(nn.Linear, inputs, outputs))
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer
