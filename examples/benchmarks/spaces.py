"""An image, a masked and a recurrent policy each learn a small task; printed as a table.

    python examples/benchmarks/spaces.py                  # all of them, a quarter of an hour on one core
    python examples/benchmarks/spaces.py recall --seeds 5

- catch: a ball falls over an image of 10 x 10 bytes, a paddle below goes left or right; +1 where it catches the ball.
- noughts: noughts and crosses against random moves; taken squares are masked. +1 for a win, -1 for a loss.
- recall: the first observation says where the reward lies, eight steps later there is the choice; +1 or -1. The same
  network without a memory stands beside it: it cannot do better than 0.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from grpolib import GRPOTrainer, Masked, MaskInObservation, MinibatchPlan, cnn, gru, network, recipes

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
"""Of three squares."""


class Catch(gymnasium.Env):
    """Source: the task of the same name in bsuite (arXiv:1908.03568)."""

    observation_space = Box(0, 255, (10, 10), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.paddle, self.column = 0, 5, int(self.np_random.integers(10))
        return self._see(), {}

    def step(self, action):
        self.paddle = min(max(self.paddle + action - 1, 0), 9)
        self.row += 1
        over = self.row == 9
        reward = 0.0 if not over else 1.0 if self.paddle == self.column else -1.0
        return self._see(), reward, over, False, {}

    def _see(self):
        image = np.zeros((10, 10), dtype=np.uint8)
        image[self.row, self.column] = image[9, self.paddle] = 255
        return image


class Noughts(gymnasium.Env):
    """Moves first half of the time; a move to a taken square is refused."""

    observation_space = Box(-1.0, 1.0, (9,), np.float32)
    action_space = Discrete(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.board = np.zeros(9, dtype=np.float32)
        if self.np_random.random() < 0.5:
            self._answer()
        return self.board.copy(), self._info()

    def step(self, action):
        if self.board[action] != 0:
            raise ValueError(f"square {action} is taken")
        self.board[action] = 1
        if not self._is_over():
            self._answer()
        reward = float(self._won(1)) - float(self._won(-1))
        return self.board.copy(), reward, self._is_over(), False, self._info()

    def _answer(self):
        self.board[self.np_random.choice(np.flatnonzero(self.board == 0))] = -1

    def _won(self, player):
        return any(all(self.board[square] == player for square in line) for line in LINES)

    def _is_over(self):
        return self._won(1) or self._won(-1) or not (self.board == 0).any()

    def _info(self):
        return {"action_mask": self.board == 0}


class Recall(gymnasium.Env):
    """Observes [cue in the first step, else 0; time to choose]."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.cue = 0, int(self.np_random.integers(2))
        return self._see(), {}

    def step(self, action):
        self.time += 1
        over = self.time == 9
        reward = 0.0 if not over else 1.0 if action == self.cue else -1.0
        return self._see(), reward, over, False, {}

    def _see(self):
        cue = 2.0 * self.cue - 1.0 if self.time == 0 else 0.0
        return np.array([cue, float(self.time == 8)], dtype=np.float32)


class Task(NamedTuple):
    """An environment, what acts in it, the unit of its minibatches, and how long it is trained."""

    env: Callable[[], gymnasium.Env]
    module: Callable[[int], nn.Module]
    plan: MinibatchPlan
    total_steps: int


def masked_network(seed: int) -> nn.Module:
    return Masked(network(Noughts.observation_space, Noughts.action_space, seed=seed), Noughts.action_space)


EPISODES = MinibatchPlan(epochs=4, size=16, by="episode")
STEPS = MinibatchPlan(epochs=4, size=128)
TASKS = {
    "catch": Task(Catch, lambda seed: cnn((10, 10), 3, seed=seed), STEPS, 60_000),
    "noughts": Task(lambda: MaskInObservation(Noughts()), masked_network, STEPS, 150_000),
    "recall": Task(Recall, lambda seed: gru(Recall.observation_space, 2, width=32, seed=seed), EPISODES, 60_000),
    "recall, no memory": Task(Recall, lambda seed: network(Recall.observation_space, 2, seed=seed), STEPS, 60_000),
}


def learnt(task: Task, seed: int) -> tuple[float, float, float, float]:
    """The sampled return before, both returns after, and the seconds that it took."""
    trainer = GRPOTrainer(
        task.module(seed),
        task.env,
        recipe=recipes.critic_free(),
        plan=task.plan,
        optimizer=partial(torch.optim.Adam, lr=1e-3, eps=1e-5, fused=True),
        groups_per_step=8,
        seed=seed,
    )
    before = trainer.evaluate(episodes=200).sampled.mean
    start = time.perf_counter()
    trainer.train(total_steps=task.total_steps)
    seconds = time.perf_counter() - start
    after = trainer.evaluate(episodes=200)
    return before, after.sampled.mean, after.argmax.mean, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}; all if none is named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--total-steps", type=int, help="instead of each task's own")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | steps | before | after, sampled | after, argmax | seconds |\n|---|---|---|---|---|---|")
    for name in args.tasks:
        task = TASKS[name]
        if args.total_steps is not None:
            task = task._replace(total_steps=args.total_steps)
        columns = zip(*(learnt(task, seed) for seed in range(args.seeds)), strict=True)
        before, sampled, argmax, seconds = (list(column) for column in columns)
        scores = " | ".join(
            f"{statistics.mean(c):.2f} ({min(c):.2f} to {max(c):.2f})" for c in (before, sampled, argmax)
        )
        print(f"| {name} | {task.total_steps:,} | {scores} | {statistics.mean(seconds):.0f} |", flush=True)


if __name__ == "__main__":
    main()
