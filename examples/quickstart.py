"""CartPole in half a minute: a policy, an environment, a recipe."""

import argparse

from grpolib import GRPOTrainer, mlp, recipes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-steps", type=int, default=100_000)
args = parser.parse_args()

policy = mlp(4, 64, 64, 2, seed=0)  # observations -> logits
trainer = GRPOTrainer(policy, "CartPole-v1", recipe=recipes.critic_free(), seed=0)
print("before:", trainer.evaluate(episodes=20), sep="\n")
trainer.train(total_steps=args.total_steps)
print("after:", trainer.evaluate(episodes=20), sep="\n")
