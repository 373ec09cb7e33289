"""Continuous actions: swing a pendulum up without a critic. The environment gets the action cut to its bounds.

    python examples/continuous.py           # about a minute on one core

    before:  argmax  -1137.9, sampled  -1183.8, entropy at the start 1.42 nats
    after:   argmax   -215.5, sampled   -301.0, entropy at the start 1.28 nats
    largest torque: 17.81 in the batch, 2.00 for the environment
    ratios of the untouched policy: 1.0000 to 1.0000

Not every seed learns it in so many steps: docs/results.md has three.
"""

import argparse
from functools import partial

import gymnasium
import numpy as np
import torch

from grpolib import GroupSampler, GRPOTrainer, mlp, recipes


class Watched(gymnasium.Wrapper):
    """Remembers the largest torque that the environment was given."""

    largest = 0.0

    def step(self, action):
        Watched.largest = max(Watched.largest, float(np.abs(action).max()))
        return self.env.step(action)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1, help="of the policy and the trainer, default: %(default)s")
    args = parser.parse_args()
    policy = mlp(3, 64, 64, 2, seed=args.seed)  # observation -> mean and log standard deviation of one torque
    trainer = GRPOTrainer(
        policy,
        "Pendulum-v1",
        recipe=recipes.critic_free(),
        optimizer=partial(torch.optim.Adam, lr=2e-3, eps=1e-5),
        seed=args.seed,
    )
    print("before:", trainer.evaluate(episodes=20), sep="\n")
    trainer.train(total_steps=args.total_steps)
    print("after:", trainer.evaluate(episodes=20), sep="\n")
    sampler = GroupSampler(lambda: Watched(gymnasium.make("Pendulum-v1")), group_size=8)
    batch = sampler.sample(trainer.policy, num_groups=1, seed=np.random.SeedSequence(0))
    largest = batch.inputs.actions.abs().max()
    print(f"largest torque: {largest:.2f} in the batch, {Watched.largest:.2f} for the environment")
    ratios = (trainer.policy.evaluate(batch.inputs).log_probs - batch.log_probs).exp()
    print(f"ratios of the untouched policy: {ratios.min():.4f} to {ratios.max():.4f}")


if __name__ == "__main__":
    main()
