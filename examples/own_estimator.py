"""An advantage estimator of one's own, beside a built-in one, on CartPole.

An estimator is a callable from a `GroupBatch` to one advantage per step. This one lets the episodes of a group
play against each other: an episode's advantage is the share of the others that it beats minus the share that
beats it. Unlike the z-score it does not depend on how far the returns are apart.

    python examples/own_estimator.py        # about 30 seconds on one core

    GroupZScore(), after 110,846 steps:       argmax 500.0, sampled 500.0
    wins_minus_losses, after 108,363 steps:   argmax 500.0, sampled 500.0

Both learn. One seed does not say which of them learns faster.
"""

import argparse
from typing import Any

from torch import Tensor

from grpolib import GroupBatch, GroupZScore, GRPOTrainer, mlp, recipes


def wins_minus_losses(batch: GroupBatch[Any]) -> Tensor:
    """Return one advantage in [-1, 1] per step; those of a group's episodes sum to 0."""
    returns, groups = batch.episode_returns, batch.group_ids  # [N] each
    same_group = (groups[:, None] == groups).float()  # [N, N]
    duels = (returns[:, None] - returns).sign() * same_group
    advantages = duels.sum(1) / (same_group.sum(1) - 1)  # an episode does not play against itself
    return advantages[batch.episode_ids]  # [S]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=100_000)
    args = parser.parse_args()
    for name, advantages in (("GroupZScore()", GroupZScore()), ("wins_minus_losses", wins_minus_losses)):
        policy = mlp(4, 64, 64, 2, seed=0)
        trainer = GRPOTrainer(policy, "CartPole-v1", recipe=recipes.critic_free(), advantages=advantages, seed=0)
        trainer.train(total_steps=args.total_steps)
        print(f"{name}, after {trainer.num_steps:,} steps:", trainer.evaluate(episodes=20), "", sep="\n")


if __name__ == "__main__":
    main()
