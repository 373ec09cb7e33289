"""Evaluation both ways: the most probable action, and the policy as it was trained."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpolib.batch import GroupBatch
from grpolib.functional._checks import check_whole
from grpolib.minibatch import EpisodeInputs
from grpolib.policies import ActingPolicy, Policy, as_policy
from grpolib.sampling.engines import Engine, Run, Workers, make_engine
from grpolib.sampling.environments import BLOCK, Env, EnvSource, describe_environments, is_list, make_environments
from grpolib.sampling.rollout import device_of, generator, one_torch_thread, rollout
from grpolib.trees import select

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
    workers: Workers = 0,
) -> EvaluationReport:
    """Run the policy by mode and by sample from the same reset seeds.

    Environments and generators are its own: training goes on as if it had not been called.

    Args:
        policy: A policy, or any module that `as_policy` takes.
        env: An id or a factory.
        episodes: Episodes each way, >= 1, with reset seeds first_seed, first_seed + 1, ...
        first_seed: Default: the reported seeds.
        threshold: Return from which an episode counts as solved; None takes the environment's own.
        workers: Where episodes run: 0 here, a number of processes, or "auto"; the figures are the same.

    Raises:
        ValueError: episodes < 1.
    """
    evaluator = Evaluator(env, make_engine(workers), threshold=threshold)
    try:
        return evaluator(policy, episodes=episodes, first_seed=first_seed)
    finally:
        evaluator.engine.close()


class Evaluator:
    """Evaluates on an engine that it may share with a sampler; see `evaluate`."""

    def __init__(self, env: EnvSource, engine: Engine, *, threshold: float | None = None) -> None:
        self.engine = engine
        self.source = env
        # Of one factory per group member the first stands for all.
        first = env[0] if is_list(env) else env
        description = describe_environments(first, BLOCK)
        self._action_space = description.action_space
        self._threshold = description.reward_threshold if threshold is None else threshold
        self._stage = EvaluationStage(first)

    def __call__(self, policy: Policy | nn.Module, *, episodes: int, first_seed: int) -> EvaluationReport:
        """Both ways from the reset seeds first_seed, ..., first_seed + episodes - 1."""
        check_whole(episodes=episodes, first_seed=first_seed)
        if episodes < 1 or first_seed < 0:
            raise ValueError(f"episodes is {episodes} and first_seed {first_seed}: they must be >= 1 and >= 0")
        acting = as_policy(policy, self._action_space)
        blocks = _blocks(first_seed, episodes)
        jobs = [EvaluationJob(block, deterministic) for deterministic in (True, False) for block in blocks]
        with _evaluation_mode(acting), one_torch_thread():
            groups = self.engine.map(self._stage, acting, jobs)
            entropy = _start_entropy(acting, groups[: len(blocks)])
        argmax, sampled = groups[: len(blocks)], groups[len(blocks) :]
        return EvaluationReport(_statistics(argmax, self._threshold), _statistics(sampled, self._threshold), entropy)


@dataclass(frozen=True)
class EvaluationJob:
    """Episodes that share a policy call, one per reset seed."""

    reset_seeds: list[int]
    deterministic: bool


@dataclass(frozen=True, eq=False)
class EvaluationStage:
    """A block of environments for evaluation."""

    source: EnvSource

    def build(self) -> Run:
        """Make the environments."""
        return EvaluationRun(make_environments(self.source, BLOCK))


@dataclass(frozen=True)
class EvaluationRun:
    """Runs episodes, each from a reset seed of its own."""

    environments: list[Env]

    def __call__(self, policy: ActingPolicy, job: EvaluationJob) -> GroupBatch[Any]:
        """One complete episode per reset seed."""
        rng = generator(np.random.SeedSequence(job.reset_seeds[0]))
        environments = self.environments[: len(job.reset_seeds)]
        return rollout(environments, policy, job.reset_seeds, rng, deterministic=job.deterministic)

    def close(self) -> None:
        """Close the environments."""
        for environment in self.environments:
            environment.close()


@contextmanager
def _evaluation_mode(policy: Policy) -> Generator[None, None, None]:
    """Dropout and the like are off, then every part is as it was."""
    modes = [(module, module.training) for module in policy.modules()]
    policy.train(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _blocks(first_seed: int, episodes: int) -> list[list[int]]:
    seeds = list(range(first_seed, first_seed + episodes))
    return [seeds[start : start + BLOCK] for start in range(0, episodes, BLOCK)]


def _statistics(groups: list[GroupBatch[Any]], threshold: float | None) -> EpisodeStatistics:
    returns = torch.cat([group.episode_returns for group in groups])
    return EpisodeStatistics(returns, torch.cat([group.lengths for group in groups]), threshold)


@torch.no_grad()
def _start_entropy(policy: ActingPolicy, groups: list[GroupBatch[Any]]) -> float:
    first, *rest = [_first_steps(group) for group in groups]
    return float(policy.evaluate(first.concatenate(rest).to(device_of(policy))).entropy.mean())


def _first_steps(group: GroupBatch[Any]) -> Any:
    """What the policy reads at the start of each episode."""
    rows, inputs = group.offsets[:-1], group.inputs
    if isinstance(inputs, EpisodeInputs):
        first = (select(inputs.observations, rows), select(inputs.actions, rows))
        return EpisodeInputs(*first, torch.ones_like(inputs.lengths), inputs.states)
    return inputs.select_steps(rows)
