"""Several processes that train one policy: each samples its share of the groups, gradients are summed.

    torchrun --standalone --nproc-per-node 2 examples/scale/several_ranks.py
    srun --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \
        --rdzv-endpoint $HEAD:29500 examples/scale/several_ranks.py --run-folder /shared/run

The same script without torchrun trains in one process, with the same results but for rounding. A run folder with
checkpoints is gone on with, by any number of ranks.
"""

import argparse
from pathlib import Path

from grpolib import CheckpointEvery, GRPOTrainer, MinibatchPlan, Ranks, mlp, recipes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--run-folder", type=Path)
    args = parser.parse_args()
    policy = mlp(4, 64, 64, 2, seed=0)
    # The minibatch of all ranks together: one that is too small spends its time in messages.
    pieces = {"recipe": recipes.critic_free(), "plan": MinibatchPlan(epochs=4, size=512), "groups_per_step": 8}

    with Ranks.of_torchrun() as ranks:
        folder, callbacks = args.run_folder, [CheckpointEvery(5)] if args.run_folder else []
        settings = {"callbacks": callbacks, "ranks": ranks, **pieces}
        if folder is not None and (folder / "checkpoints" / "latest").exists():
            trainer = GRPOTrainer.resume(folder, policy, "CartPole-v1", **settings)
        else:
            trainer = GRPOTrainer(policy, "CartPole-v1", run_folder=folder, **settings)
        trainer.train(total_steps=args.total_steps)
        report = trainer.evaluate(episodes=20)
        if ranks.rank == 0:
            print(report)


if __name__ == "__main__":
    main()
