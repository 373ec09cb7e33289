"""CartPole in half a minute: a policy, an environment, a recipe."""

from grpolib import GRPOTrainer, mlp, recipes

policy = mlp(4, 64, 64, 2, seed=0)
trainer = GRPOTrainer(policy, "CartPole-v1", recipe=recipes.critic_free(), seed=0)
print("before:", trainer.evaluate(episodes=20), sep="\n")
trainer.train(total_steps=100_000)
print("after:", trainer.evaluate(episodes=20), sep="\n")
