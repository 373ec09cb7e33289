"""Small networks that work out of the box."""

import math
from itertools import pairwise
from typing import Any, cast

import gymnasium
import torch
from gymnasium.spaces import Dict, Tuple
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from grpolib.policies.distributions import num_outputs
from grpolib.policies.recurrent import Recurrent
from grpolib.policies.spaces import as_tree, check_observation_space, is_image, observation_parts, observation_shape
from grpolib.trees import Tree, features, tree_map

CHANNELS = (16, 32, 32)
"""Of the convolutions; each halves height and width."""


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
    return nn.Sequential(*layers, _linear(sizes[-2], sizes[-1], _head_gain(sizes[-1]), rng))


def cnn(shape: tuple[int, ...], outputs: int, *, width: int = 128, seed: int = 0) -> nn.Sequential:
    """Three convolutions of stride 2 and a tanh layer for images, which may be of any size.

    Args:
        shape: Of one image, [height, width], [height, width, channels] or [channels, height, width]: the smaller one of
            the first and the last axis is the channels. Or [frames, height, width, channels], whose frames are channels
            too. Bytes become numbers in [0, 1].
        outputs: As of `mlp`.
        width: Of the layer before the head.
        seed: Of its own generator.

    Raises:
        ValueError: No image's shape.

    >>> cnn((84, 84, 3), 4)(torch.zeros(2, 84, 84, 3, dtype=torch.uint8)).shape
    torch.Size([2, 4])
    """
    rng = torch.Generator().manual_seed(seed)
    return nn.Sequential(*_eye(shape, width, rng), _linear(width, outputs, _head_gain(outputs), rng))


def _eye(shape: tuple[int, ...], width: int, rng: torch.Generator) -> list[nn.Module]:
    """From images to `width` numbers in [-1, 1]."""
    if len(shape) not in (2, 3, 4) or min(shape) < 1:
        raise ValueError(f"images have shape {shape}: give [height, width], or that and the channels")
    pixels = Pixels(shape)
    channels, *size = pixels.shape
    layers: list[nn.Module] = [pixels]
    for inner, outer in pairwise((channels, *CHANNELS)):
        layers += [_started(nn.Conv2d, inner, outer, 3, stride=2, padding=1, gain=math.sqrt(2), rng=rng), nn.ReLU()]
        size = [(side + 1) // 2 for side in size]
    return [*layers, nn.Flatten(), _linear(CHANNELS[-1] * math.prod(size), width, math.sqrt(2), rng), nn.Tanh()]


class Pixels(nn.Module):
    """Images as convolutions take them: channels first, and bytes as numbers in [0, 1]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._channels = {2: (), 3: (2,) if shape[-1] < shape[0] else (0,), 4: (0, 3)}[len(shape)]
        size = [side for axis, side in enumerate(shape) if axis not in self._channels]
        self.shape = (math.prod(shape[axis] for axis in self._channels), *size)

    def forward(self, images: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n C H W"]:
        """[n, channels, height, width]."""
        axes = [axis + 1 for axis in self._channels]
        images = images.movedim(axes, list(range(1, len(axes) + 1))).reshape(len(images), *self.shape)
        return images.float() / 255 if images.dtype == torch.uint8 else images


def network(
    observation_space: gymnasium.Space[Any], outputs: int | gymnasium.Space[Any], *, width: int = 64, seed: int = 0
) -> nn.Module:
    """A network for any supported observation space: `mlp`, `cnn`, or both for a nested space.

    Args:
        observation_space: Vectors go through two tanh layers, an image through `cnn`; the parts of a Dict or Tuple are
            joined: images as `width` numbers each, all else as it is.
        outputs: A number of them (1: a critic's), or the action space.
        width: Of the tanh layers.
        seed: Of its own generator.

    Raises:
        ValueError: A space that is not supported.
    """
    check_observation_space(observation_space)
    number = outputs if isinstance(outputs, int) else num_outputs(outputs)
    if is_image(observation_space):
        return cnn(observation_space.shape, number, seed=seed)
    encoder = Side(observation_space, width, torch.Generator().manual_seed(seed))
    layers = mlp(encoder.size, width, width, number, seed=seed)
    is_vector = not isinstance(observation_space, Dict | Tuple) and len(observation_shape(observation_space)) == 1
    return layers if is_vector else nn.Sequential(encoder, *layers)


class Side(nn.Module):
    """The parts of an observation side by side, [n, size]: images as so many numbers, all else as it is."""

    def __init__(self, observation_space: gymnasium.Space[Any], image_size: int, rng: torch.Generator) -> None:
        super().__init__()
        parts = [part.space for part in observation_parts(observation_space)]
        self.encoders = nn.ModuleList(
            nn.Sequential(*_eye(part.shape, image_size, rng)) if is_image(part) else nn.Identity() for part in parts
        )
        self.size = sum(image_size if is_image(part) else math.prod(observation_shape(part)) for part in parts)
        self._space = observation_space

    def forward(self, observations: Tree) -> Float[Tensor, "n F"]:
        """One row of numbers an observation."""
        encoders = as_tree(self._space, iter(self.encoders))
        return features(tree_map(lambda encoder, part: encoder(part), encoders, observations))


def gru(
    observation_space: gymnasium.Space[Any], outputs: int | gymnasium.Space[Any], *, width: int = 64, seed: int = 0
) -> Recurrent:
    """A network with a memory, for any supported observation space: encoder, `nn.GRU`, head; see `network`."""
    return _recurrent(nn.GRU, observation_space, outputs, width, seed)


def lstm(
    observation_space: gymnasium.Space[Any], outputs: int | gymnasium.Space[Any], *, width: int = 64, seed: int = 0
) -> Recurrent:
    """As `gru`, with an `nn.LSTM`."""
    return _recurrent(nn.LSTM, observation_space, outputs, width, seed)


def _recurrent(
    kind: type[nn.GRU] | type[nn.LSTM],
    observation_space: gymnasium.Space[Any],
    outputs: int | gymnasium.Space[Any],
    width: int,
    seed: int,
) -> Recurrent:
    check_observation_space(observation_space)
    rng = torch.Generator().manual_seed(seed)
    side = Side(observation_space, width, rng)
    encoder = nn.Sequential(side, _linear(side.size, width, math.sqrt(2), rng), nn.Tanh())
    with torch.random.fork_rng(devices=[]):  # its own initialisation draws from the global generator
        memory = kind(width, width, batch_first=True)
    for name, parameter in memory.named_parameters():
        if "weight" in name:
            nn.init.orthogonal_(parameter, generator=rng)
        else:
            nn.init.zeros_(parameter)
    number = outputs if isinstance(outputs, int) else num_outputs(outputs)
    return Recurrent(encoder, memory, _linear(width, number, _head_gain(number), rng))


def _head_gain(outputs: int) -> float:
    """Near uniform at the start; a value head of one output is not made small."""
    return 1.0 if outputs == 1 else 0.01


def _linear(inputs: int, outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    return cast(nn.Linear, _started(nn.Linear, inputs, outputs, gain=gain, rng=rng))


def _started(kind: type[nn.Module], *sizes: int, gain: float, rng: torch.Generator, **keywords: int) -> nn.Module:
    # skip_init: the module's own initialisation would draw from the global generator.
    layer: Any = torch.nn.utils.skip_init(kind, *sizes, **keywords)
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    nn.init.zeros_(layer.bias)
    return cast(nn.Module, layer)
