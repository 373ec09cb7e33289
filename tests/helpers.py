"""What several test files build on: a batch, modules with a known output, a watch over the global generators."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn

from grpolib import GroupBatch, Minibatch, StepInputs


def slow(*values):
    """A set of parameters that only CI and `make check-all` run."""
    return pytest.param(*values, marks=pytest.mark.slow)


def ints(*values):
    return torch.tensor(values, dtype=torch.long)


def bools(*values):
    return torch.tensor(values, dtype=torch.bool)


def make_batch(lengths=(2, 1, 3), group_ids=None, rewards=None, **fields):
    """A batch whose row t has observation [t] and action t, log-probability -(t + 1) and reward t + 1."""
    num_steps = sum(lengths)
    rows = torch.arange(num_steps)
    values = {
        "inputs": StepInputs(rows.float().unsqueeze(1), rows),
        "log_probs": -(rows + 1).float(),
        "rewards": (rows + 1).float() if rewards is None else torch.as_tensor(rewards),
        "lengths": ints(*lengths),
        "group_ids": torch.zeros(len(lengths), dtype=torch.long) if group_ids is None else ints(*group_ids),
        "terminated": torch.ones(len(lengths), dtype=torch.bool),
    }
    return GroupBatch(**{**values, **fields})


def make_minibatch(advantages, *, old_log_probs=None, weights=None, **fields):
    """A minibatch of s steps; without weights, their plain mean."""
    advantages = torch.as_tensor(advantages)
    size = len(advantages)
    values = {
        "inputs": StepInputs(torch.zeros(size, 1), torch.zeros(size, dtype=torch.long)),
        "old_log_probs": torch.zeros_like(advantages) if old_log_probs is None else torch.as_tensor(old_log_probs),
        "advantages": advantages,
        "weights": torch.full_like(advantages, 1 / size) if weights is None else torch.as_tensor(weights),
    }
    return Minibatch(**{**values, **fields})


def rows_of(part):
    """The rows of `make_batch` that a minibatch holds."""
    return part.inputs.actions.tolist()


class Constant(nn.Module):
    """The same trainable output for every observation."""

    def __init__(self, *output):
        super().__init__()
        self.output = nn.Parameter(torch.tensor(output, dtype=torch.float32))

    def forward(self, observations):
        return self.output.expand(len(observations), -1)


class Gives(nn.Module):
    """Calls `function` on the observations; one idle parameter."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, observations):
        return self.function(observations)


@contextlib.contextmanager
def global_generators_untouched():
    """Fails unless Python's, NumPy's and torch's global generators stand where they stood.

    Take the fixture `without_shape_hook` with it: the type checker picks the items that it looks at by `random`.
    """
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    before = global_states()
    yield
    assert global_states() == before


def global_states():
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()


def parameters_of(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_same_parameters(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
