"""Evaluation both ways: the most probable action, and the policy as it was trained."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpolib.batch import GroupBatch, StepInputs
from grpolib.policies import ActingPolicy, Policy, as_policy
from grpolib.sampling.environments import BLOCK, EnvSource, make_environments
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import device_of, generator, one_torch_thread, rollout

REPORTED_SEEDS = 1_000_000_000
"""First reset seed of reported episodes; used for nothing else."""
CHOOSING_SEEDS = 2_000_000_000
"""First reset seed of the episodes by which checkpoints, recipes and settings are chosen."""


@dataclass(frozen=True)
class EpisodeStatistics:
    """Returns and lengths of complete episodes, one per reset seed.

    `solved` is the share of returns >= `threshold`; None without a threshold.
    """

    returns: Float[Tensor, " N"]
    lengths: Int[Tensor, " N"]
    threshold: float | None

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns over the seeds (divisor N)."""
        return float(self.returns.std(correction=0))

    @property
    def solved(self) -> float | None:
        """Share of episodes whose return reaches the threshold, in [0, 1]."""
        if self.threshold is None:
            return None
        return float((self.returns >= self.threshold).float().mean())

    @property
    def length(self) -> float:
        """Mean length in steps."""
        return float(self.lengths.float().mean())


@dataclass(frozen=True)
class EvaluationReport:
    """The same reset seeds twice: by mode (`argmax`) and by sample (`sampled`).

    `start_entropy` is the policy's mean entropy at the start states, in nats. A gap between the two columns
    together with a high entropy means that the mode is a different controller from the policy that was trained.
    """

    argmax: EpisodeStatistics
    sampled: EpisodeStatistics
    start_entropy: float

    def as_row(self) -> dict[str, float | None]:
        """Every figure under one flat name, for a file."""
        row: dict[str, float | None] = {}
        for name, statistics in (("argmax", self.argmax), ("sampled", self.sampled)):
            for figure in ("mean", "std", "solved", "length"):
                row[f"{name}_{figure}"] = getattr(statistics, figure)
        return {**row, "start_entropy": self.start_entropy}

    def __str__(self) -> str:
        lines = [f"{'':9}{'return':>9} {'±':>7}{'solved':>9}{'length':>9}"]
        for name, statistics in (("argmax", self.argmax), ("sampled", self.sampled)):
            solved = "" if statistics.solved is None else f"{statistics.solved:.0%}"
            lines.append(f"{name:9}{statistics.mean:9.1f} {statistics.std:7.1f}{solved:>9}{statistics.length:9.1f}")
        threshold = "" if self.argmax.threshold is None else f", solved: return >= {self.argmax.threshold:g}"
        lines.append(
            f"{len(self.argmax.returns)} episodes each, entropy at the start {self.start_entropy:.2f} nats{threshold}"
        )
        return "\n".join(lines)


def evaluate(
    policy: Policy | nn.Module,
    env: EnvSource,
    *,
    episodes: int = 50,
    first_seed: int = REPORTED_SEEDS,
    threshold: float | None = None,
) -> EvaluationReport:
    """Run the policy by mode and by sample from the same reset seeds.

    Environments and generators are its own: training goes on as if it had not been called.

    Args:
        policy: A policy, or any module that `as_policy` takes.
        env: An id or a factory.
        episodes: Episodes each way, >= 1, with reset seeds first_seed, first_seed + 1, ...
        first_seed: Default: the reported seeds.
        threshold: Return from which an episode counts as solved; None takes the environment's own.

    Raises:
        ValueError: episodes < 1.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}: evaluate at least one")
    environments = make_environments(env, min(BLOCK, episodes))
    policy = as_policy(policy, environments[0].action_space)
    if threshold is None and environments[0].spec is not None:
        threshold = environments[0].spec.reward_threshold
    was_training = policy.training
    policy.train(False)
    seed = np.random.SeedSequence(first_seed)
    try:
        with one_torch_thread():
            blocks = [
                [
                    rollout(
                        environments[: len(seeds)],
                        policy,
                        seeds,
                        generator(group_seed(seed, block)),
                        deterministic=deterministic,
                    )
                    for block, seeds in enumerate(_blocks(first_seed, episodes))
                ]
                for deterministic in (True, False)
            ]
            entropy = _start_entropy(policy, blocks[0])
    finally:
        policy.train(was_training)
        for environment in environments:
            environment.close()
    argmax, sampled = (_statistics(groups, threshold) for groups in blocks)
    return EvaluationReport(argmax, sampled, entropy)


def _blocks(first_seed: int, episodes: int) -> list[list[int]]:
    seeds = list(range(first_seed, first_seed + episodes))
    return [seeds[start : start + BLOCK] for start in range(0, episodes, BLOCK)]


def _statistics(groups: list[GroupBatch[StepInputs]], threshold: float | None) -> EpisodeStatistics:
    returns = torch.cat([group.episode_returns for group in groups])
    return EpisodeStatistics(returns, torch.cat([group.lengths for group in groups]), threshold)


@torch.no_grad()
def _start_entropy(policy: ActingPolicy, groups: list[GroupBatch[StepInputs]]) -> float:
    first, *rest = [group.inputs.select_steps(group.offsets[:-1]) for group in groups]
    return float(policy.evaluate(first.concatenate(rest).to(device_of(policy))).entropy.mean())
