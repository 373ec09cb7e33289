"""Groups on a Ray cluster: the run of one process, bit for bit, with the environments on other machines.

    pip install "grpolib[ray]"
    python examples/scale/ray_rollouts.py                                  # two workers on this machine
    python examples/scale/ray_rollouts.py --address auto --workers 64      # on the head node of a cluster

A worker that is lost is replaced, and its groups are run again with the same seeds.
"""

import argparse

import ray

from grpolib import GroupSampler, GRPOTrainer, RayWorkers, mlp, recipes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--address", help="of a running cluster; a local one is started without it")
    args = parser.parse_args()
    local = {} if args.address else {"num_cpus": args.workers, "include_dashboard": False}
    ray.init(address=args.address, log_to_driver=False, **local)

    sampler = GroupSampler("CartPole-v1", group_size=16, workers=RayWorkers(args.workers))
    trainer = GRPOTrainer(mlp(4, 64, 64, 2, seed=0), sampler, recipe=recipes.critic_free(), seed=0)
    try:
        trainer.train(total_steps=args.total_steps)
        print(trainer.evaluate(episodes=20))
    finally:
        trainer.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
