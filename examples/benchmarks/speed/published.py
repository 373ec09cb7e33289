"""GRPO on LunarLander written down plainly: what `throughput.py` compares the library with.

64 environments (4 reset seeds x 16 members), one call of the network per time step for all episodes that still run,
4 epochs of minibatches of 64 steps, eager PyTorch and its plain Adam, a reference copied every 10 iterations. Nothing
of the library is imported. Nothing is slow on purpose: no logging, no argument checks, no distribution objects.
"""

import copy
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

PROMPTS, GROUP_SIZE, EPOCHS, MINIBATCH = 4, 16, 4, 64
CLIP, KL_COEFFICIENT, MAX_GRAD_NORM, REFRESH_EVERY = 0.2, 0.04, 0.5, 10


class Rollout(NamedTuple):
    """One row per step, in the order in which steps were taken; returns and lengths of the 64 episodes."""

    states: Tensor
    actions: Tensor
    log_probs: Tensor
    episodes: Tensor
    returns: Tensor
    lengths: Tensor


class PlainGRPO:
    """The loop: collect 64 episodes, learn from them, again."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.envs = [gymnasium.make("LunarLander-v3") for _ in range(PROMPTS * GROUP_SIZE)]
        self.actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        for layer, gain in zip(self.actor[::2], (2**0.5, 2**0.5, 0.01), strict=True):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.reference = copy.deepcopy(self.actor)
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4, eps=1e-5)
        self.iteration = 0

    @torch.no_grad()
    def collect(self) -> Rollout:
        """One complete episode in every environment; the 16 of a group start from the same reset seed."""
        seeds = np.repeat(self.rng.integers(0, 900_000_000, size=PROMPTS), GROUP_SIZE)
        states = np.stack([env.reset(seed=int(seed))[0] for env, seed in zip(self.envs, seeds, strict=True)])
        returns, lengths = np.zeros(len(states)), np.zeros(len(states), dtype=np.int64)
        alive = np.arange(len(states))
        rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        while len(alive):
            observations = torch.from_numpy(states[alive])
            log_probs = self.actor(observations).log_softmax(-1)
            actions = torch.multinomial(log_probs.exp(), 1)
            rows.append((observations, actions[:, 0], log_probs.gather(1, actions)[:, 0], torch.from_numpy(alive)))
            running = []
            for member, action in zip(alive.tolist(), actions[:, 0].tolist(), strict=True):
                states[member], reward, terminated, truncated, _ = self.envs[member].step(action)
                returns[member] += reward
                lengths[member] += 1
                if not (terminated or truncated):
                    running.append(member)
            alive = np.array(running, dtype=np.int64)
        columns = [torch.cat(column) for column in zip(*rows, strict=True)]
        return Rollout(*columns, torch.from_numpy(returns).float(), torch.from_numpy(lengths))

    def learn(self, rollout: Rollout) -> int:
        """Four epochs over the steps; returns the number of updates."""
        num_steps = len(rollout.actions)
        groups = rollout.returns.view(PROMPTS, GROUP_SIZE)
        z_scores = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, correction=0, keepdim=True) + 1e-4)
        advantages = z_scores.flatten()[rollout.episodes]
        weights = (num_steps / (len(rollout.lengths) * rollout.lengths))[rollout.episodes]
        with torch.no_grad():
            reference_log_probs = log_probs_of(self.reference, rollout.states, rollout.actions)
        updates = 0
        for _ in range(EPOCHS):
            for rows in torch.randperm(num_steps).split(MINIBATCH):
                log_probs = log_probs_of(self.actor, rollout.states[rows], rollout.actions[rows])
                ratio = (log_probs - rollout.log_probs[rows]).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                surrogate = torch.min(ratio * advantages[rows], clipped * advantages[rows])
                difference = reference_log_probs[rows] - log_probs
                kl = difference.exp() - difference - 1
                loss = -(weights[rows] * (surrogate - KL_COEFFICIENT * kl)).mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.actor.parameters(), MAX_GRAD_NORM)
                self.optimizer.step()
                updates += 1
        self.iteration += 1
        if self.iteration % REFRESH_EVERY == 0:
            self.reference.load_state_dict(self.actor.state_dict())
        return updates


def log_probs_of(actor: nn.Module, states: Tensor, actions: Tensor) -> Tensor:
    return actor(states).log_softmax(-1).gather(1, actions[:, None])[:, 0]
