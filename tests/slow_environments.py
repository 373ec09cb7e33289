"""Environments and policies for worker processes: obedient ones, and ones that fail away from home."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch
from environments import Counting
from torch import nn

from grpolib import mlp


def is_away():
    """Whether this is a worker process; nothing here may end the process that runs the tests."""
    return multiprocessing.parent_process() is not None


def boom():
    raise ValueError("boom")


def hang():
    time.sleep(60)


def die():
    assert is_away()
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    assert is_away()
    os._exit(3)


def infinity():
    return float("inf")


ORDERS = {action.__name__: action for action in (boom, hang, die, leave, infinity)}


class Obeys(Counting):
    """Five steps; in the third it follows the order in a file, where the reset seed beside the order is its own."""

    def __init__(self, orders):
        super().__init__(length=5)
        self.orders = Path(orders)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed, options=options)

    def reward(self, action):
        if self.time == 3 and self.orders.exists():
            order, seed = self.orders.read_text().split()
            if seed in ("any", str(self.seed)):
                return ORDERS[order]()
        return 1.0


class StaysAtHome(Counting):
    """Cannot be built in a worker process."""

    def __init__(self):
        if is_away():
            raise RuntimeError("no display")
        super().__init__()


class TellsOfClosing(Counting):
    """Leaves a file when it is closed away from home."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    def close(self):
        if is_away():
            (self.folder / f"{os.getpid()}-{id(self)}").touch()


class Homesick(nn.Module):
    """A network that cannot be unpickled in a worker process."""

    def __init__(self):
        super().__init__()
        self.network = mlp(2, 2)

    def forward(self, observations):
        return self.network(observations)

    def __setstate__(self, state):
        if is_away():
            raise RuntimeError("homesick")
        super().__setstate__(state)


class Leans(nn.Module):
    """Prefers action 1 while it is in training mode, action 0 in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.lean = nn.Parameter(torch.tensor([3.0, -3.0]))

    def forward(self, observations):
        lean = -self.lean if self.training else self.lean
        return lean.expand(len(observations), -1)
