"""Every piece wired by hand: what `Trainer.step` does, without a trainer. On CartPole.

    python examples/pieces.py               # about 50 seconds on one core

    iteration  1:  1,494 steps, mean return  23.3
    iteration  6:  7,563 steps, mean return 118.2
    iteration 12: 31,464 steps, mean return 491.6
    argmax       500.0     0.0     100%    500.0
    sampled      500.0     0.0     100%    500.0

A trainer adds metrics, schedules, callbacks, files, compilation, and a critic where one is needed.
"""

import argparse

import numpy as np
import torch

from grpolib import (
    K3,
    ClippedSurrogateLoss,
    GroupSampler,
    MinibatchPlan,
    ReferencePolicy,
    TimestepLeaveOneOut,
    as_policy,
    evaluate,
    mlp,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a network this small is faster on one

    sampler = GroupSampler("CartPole-v1", group_size=16)
    policy = as_policy(mlp(4, 64, 64, 2, seed=0), sampler.action_space)
    reference = ReferencePolicy(refresh_every=10).started_from(policy)
    estimator = TimestepLeaveOneOut(discount=0.99)
    losses = [ClippedSurrogateLoss(clip_epsilon=0.2), K3(0.04)]
    plan = MinibatchPlan(epochs=4, size=64)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    rng = torch.Generator().manual_seed(0)  # of the minibatches

    for iteration in range(1, args.iterations + 1):
        seed = np.random.SeedSequence(0, spawn_key=(iteration,))
        batch = sampler.sample(policy, 4, seed)  # 4 groups of 16 episodes, each group from one start
        batch = reference.annotate(batch)  # log pi_ref(a|s), once an iteration
        advantages = estimator(batch)  # [S]
        for minibatch in batch.minibatches(advantages, "step_mean", plan, rng):
            evaluation = policy.evaluate(minibatch.inputs)  # log pi(a|s) with gradient
            loss = torch.stack([term(evaluation, minibatch).loss for term in losses]).sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        reference.update(policy, iteration)
        print(f"iteration {iteration:2}: {batch.num_steps:6,} steps, mean return {batch.episode_returns.mean():5.1f}")

    sampler.close()
    print(evaluate(policy, "CartPole-v1", episodes=20))


if __name__ == "__main__":
    main()
