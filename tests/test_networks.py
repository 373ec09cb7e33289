"""Ready-made networks: every observation space has one, images too."""

import numpy as np
import pytest
import torch
from environments import box
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from helpers import assert_same_parameters, global_generators_untouched, parameters_of

from grpolib import cnn, gru, lstm, mlp, network


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3), (3, 9, 7), (1, 1), (84, 84, 4), (4, 9, 7, 3)])
def test_images_of_any_size(shape):
    module = cnn(shape, 5, width=16)
    images = torch.randint(256, (2, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    outputs = module(images)
    assert outputs.shape == (2, 5)
    assert outputs.abs().max() < 0.5  # near uniform at the start
    torch.testing.assert_close(outputs, module(images.float() / 255))


def test_channels_may_come_first_or_last():
    first, last = cnn((3, 9, 7), 4), cnn((9, 7, 3), 4)
    assert_same_parameters(parameters_of(first), parameters_of(last))
    images = torch.rand(2, 9, 7, 3)
    torch.testing.assert_close(first(images.permute(0, 3, 1, 2)), last(images))


def test_stacked_images_are_channels():
    stacked, single = cnn((2, 9, 7, 3), 4), cnn((9, 7, 6), 4)
    images = torch.rand(2, 2, 9, 7, 3)
    torch.testing.assert_close(stacked(images), single(torch.cat([images[:, 0], images[:, 1]], dim=-1)))


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 2, 2, 2, 2)])
def test_what_is_no_image(shape):
    with pytest.raises(ValueError, match=r"images have shape .*: give \[height, width\]"):
        cnn(shape, 2)


def test_vectors_have_the_plain_network():
    assert_same_parameters(
        parameters_of(network(box(5), Discrete(3), seed=4)), parameters_of(mlp(5, 64, 64, 3, seed=4))
    )
    assert_same_parameters(parameters_of(network(Discrete(5), 1)), parameters_of(mlp(5, 64, 64, 1)))


NESTED = Dict(camera=Box(0, 255, (6, 6, 3), np.uint8), rest=Tuple([box(), MultiBinary((2, 2)), MultiDiscrete([2, 3])]))


def observations(count):
    rest = (torch.rand(count), torch.ones(count, 2, 2), torch.rand(count, 5))
    return {"camera": torch.zeros(count, 6, 6, 3, dtype=torch.uint8), "rest": rest}


@pytest.mark.parametrize(
    ("action_space", "outputs"),
    [(Discrete(3), 3), (box(2), 4), (MultiBinary(5), 5), (MultiDiscrete([2, 3]), 5), (Tuple([Discrete(2), box(1)]), 4)],
    ids=str,
)
def test_nested_observations_have_a_network_for_every_action_space(action_space, outputs):
    assert network(NESTED, action_space, width=8)(observations(3)).shape == (3, outputs)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("make", [network, gru, lstm])
def test_the_seed_alone_decides_the_start(make):
    with global_generators_untouched():
        first = make(NESTED, 2, width=8, seed=3)
    torch.manual_seed(99)
    assert_same_parameters(parameters_of(first), parameters_of(make(NESTED, 2, width=8, seed=3)))
    other = parameters_of(make(NESTED, 2, width=8, seed=4))
    assert any(not torch.equal(value, other[name]) for name, value in parameters_of(first).items())


def test_every_image_has_a_start_of_its_own():
    eyes = Tuple([Box(0, 255, (6, 6), np.uint8)] * 2)
    one, other = (parameters_of(encoder) for encoder in network(eyes, 2)[0].encoders)
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("make", [network, gru])
def test_a_space_without_a_network_is_named(make):
    with pytest.raises(ValueError, match=r"observation space Text.*not supported"):
        make(Dict(a=Text(2)), 2)
