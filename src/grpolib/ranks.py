"""Data-parallel training: every rank samples and scores groups of its own, and all take the same optimizer steps.

What an estimator and a minibatch plan read are scalars, so those of all ranks are gathered and the unchanged code
runs on the union; each rank keeps its own rows. Gradients are summed: their weights are the union's already.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch import distributed as dist

from grpolib.batch import GroupBatch, concatenate
from grpolib.metrics import merged
from grpolib.minibatch import Minibatch, Rows
from grpolib.policies import ActingPolicy
from grpolib.sampling import Sampler, StepSampler
from grpolib.sampling.engines import Engine, Stage
from grpolib.text import DynamicSampling

T = TypeVar("T")


class RankError(RuntimeError):
    """Another rank is gone, or did not come to the same call in time."""


@dataclass(frozen=True)
class Origins:
    """Where the rows and episodes of a union come from; it stands for the inputs, which stay on their ranks."""

    step_ranks: Int[Tensor, " S"]
    steps: Int[Tensor, " S"]
    episode_ranks: Int[Tensor, " N"]
    episodes: Int[Tensor, " N"]

    @classmethod
    def of(cls, rank: int, num_steps: int, num_episodes: int) -> "Origins":
        """All rows and episodes of one rank."""
        ranks = torch.tensor(rank)
        return cls(
            ranks.expand(num_steps).clone(),
            torch.arange(num_steps),
            ranks.expand(num_episodes).clone(),
            torch.arange(num_episodes),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def select_steps(self, steps: Rows) -> "Origins":
        """Those of single steps; whole episodes there are none."""
        return Origins(self.step_ranks[steps], self.steps[steps], self.episode_ranks[:0], self.episodes[:0])

    def select_episodes(self, episodes: Int[Tensor, " n"], steps: Int[Tensor, " s"]) -> "Origins":
        """Those of whole episodes, whose rows are `steps`."""
        return Origins(self.step_ranks[steps], self.steps[steps], self.episode_ranks[episodes], self.episodes[episodes])

    def concatenate(self, others: "Sequence[Origins]") -> "Origins":
        """These followed by those of `others`."""
        return self._mapped(lambda name: torch.cat([getattr(part, name) for part in (self, *others)]))

    def to(self, device: torch.device) -> "Origins":
        """The same on another device."""
        return self._mapped(lambda name: getattr(self, name).to(device))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"an estimator reads inputs.{name}, and with several ranks the inputs stay where they were sampled: use an "
            "estimator of rewards, lengths and groups"
        )

    def _mapped(self, value: Callable[[str], Tensor]) -> "Origins":
        return Origins(*(value(name) for name in ("step_ranks", "steps", "episode_ranks", "episodes")))


class Ranks:
    """The processes of a `torchrun` job, one of which this is; what the trainer asks of them.

    Used as a context, it leaves the group of processes at the end:

        with Ranks.of_torchrun() as ranks:
            GRPOTrainer(policy, env, ranks=ranks).train(total_steps=1_000_000)

    Every rank runs the same script. Where torch.distributed was initialised by the caller, `Ranks()` takes that.

    Args:
        timeout: Seconds that the others are waited for; longer than the longest difference between two ranks.
    """

    def __init__(self, timeout: float = 600.0) -> None:
        self._timeout = timeout
        self._owns_group = False
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1

    @classmethod
    def of_torchrun(cls, *, timeout: float = 600.0, backend: str | None = None) -> "Ranks":
        """Join the others that `torchrun` has started; alone where it has not.

        Args:
            timeout: See `Ranks`.
            backend: None takes NCCL for policies on GPUs and gloo for those on CPUs.
        """
        joins = "WORLD_SIZE" in os.environ and not dist.is_initialized()
        if joins:
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        ranks = cls(timeout)
        ranks._owns_group = joins
        return ranks

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

    def check(self, sampler: Sampler, groups: int) -> None:
        """Raise for a sampler that cannot be shared out, or fewer groups than ranks."""
        if isinstance(sampler, StepSampler | DynamicSampling):
            raise ValueError(
                f"a {type(sampler).__name__} does not know the other {self.size - 1} ranks: give a sampler of plain "
                "groups, or train in one process"
            )
        if groups < self.size:
            raise ValueError(f"groups_per_step is {groups} for {self.size} ranks: give each rank at least one group")

    def share(self, count: int) -> range:
        """This rank's part of 0, ..., count - 1: neighbours, and as many as the others have, or one more or less."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        return True in self.gathered(flag)

    @torch.no_grad()
    def start_equal(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            self._together(partial(dist.broadcast, sent, 0))
            tensor.copy_(sent)

    def union(self, batch: GroupBatch[Any]) -> GroupBatch[Origins]:
        """The groups of all ranks in the order of their numbers, without what only this rank's model reads."""
        device = batch.rewards.device
        scalars = replace(
            batch,
            inputs=Origins.of(self.rank, batch.num_steps, batch.num_episodes).to(device),
            final_inputs=None,
            reference_parameters=None,
        )
        return concatenate(self.gathered(scalars.to(torch.device("cpu")))).to(device)

    def own(
        self,
        minibatches: Iterator[Minibatch[Origins]],
        batch: GroupBatch[Any],
        advantages: Float[Tensor, " U"],
        origins: Origins,
        returns: Float[Tensor, " U"] | None,
    ) -> Iterator[Minibatch[Any]]:
        """This rank's rows of the union's minibatches; where it has none, one of weight 0, so that none is left out.

        Args:
            minibatches: Of the union.
            batch: This rank's.
            advantages: Of the union.
            origins: The union's inputs.
            returns: Of the union, where a value loss reads them.
        """
        rows = origins.step_ranks == self.rank
        whole = batch.as_minibatch(
            advantages[rows], torch.zeros_like(advantages[rows]), None if returns is None else returns[rows]
        )
        for minibatch in minibatches:
            yield (
                self._episodes(minibatch, batch, whole)
                if minibatch.lengths is not None
                else self._steps(minibatch, whole)
            )

    def _steps(self, minibatch: Minibatch[Origins], whole: Minibatch[Any]) -> Minibatch[Any]:
        mine = minibatch.inputs.step_ranks == self.rank
        steps, weights = minibatch.inputs.steps[mine], minibatch.weights[mine]
        if len(steps) == 0:
            steps, weights = minibatch.inputs.steps.new_zeros(1), weights.new_zeros(1)
        return whole.select(steps, inputs=whole.inputs.select_steps(steps), weights=weights)

    def _episodes(self, minibatch: Minibatch[Origins], batch: GroupBatch[Any], whole: Minibatch[Any]) -> Minibatch[Any]:
        origins = minibatch.inputs
        episodes = origins.episodes[origins.episode_ranks == self.rank]
        weights = minibatch.weights[origins.step_ranks == self.rank]
        if len(episodes) == 0:
            episodes = origins.episodes.new_zeros(1)
            weights = weights.new_zeros(int(batch.lengths[0]))
        steps = batch.steps_of(episodes)
        inputs = batch.inputs.select_episodes(episodes, steps)
        return whole.select(steps, inputs=inputs, weights=weights, lengths=batch.lengths[episodes])

    def merged(self, metrics: Mapping[str, Tensor], count: Tensor) -> dict[str, Tensor]:
        """Metrics over the rows of all ranks that count.

        Args:
            metrics: Scalars, the same names on every rank.
            count: Rows that count here.
        """
        values = torch.stack([*(value.detach().float() for value in metrics.values()), count.float()])
        rows = [torch.empty_like(values) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(rows, values))
        table = torch.stack(rows)
        return {name: merged(name, table[:, k], table[:, -1]) for k, name in enumerate(metrics)}

    def summed(self, gradients: "Sequence[Tensor | None]", parameters: Sequence[Tensor]) -> "list[Tensor | None]":
        """Gradients summed over the ranks; None where a parameter has no part in the loss of any.

        In one message; behind the gradients stands which parameters have one, since ranks may differ in that.
        """
        filled = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
        given = torch.tensor([float(gradient is not None) for gradient in gradients], device=parameters[0].device)
        message = torch.cat([*(gradient.reshape(-1) for gradient in filled), given])
        self._together(lambda: dist.all_reduce(message))
        *totals, given = message.split([*(parameter.numel() for parameter in parameters), len(given)])
        return [
            total.view_as(parameter).to(parameter.dtype) if is_given else None
            for total, parameter, is_given in zip(totals, parameters, given.tolist(), strict=True)
        ]

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks, in their order; they travel as objects, as between worker processes."""
        values: list[Any] = [None] * self.size
        self._together(lambda: dist.all_gather_object(values, value))
        return values

    def _together(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.size} has lost another one, or waited {self._timeout:g} s for it in vain: "
                f"that rank's own error says why ({str(error).splitlines()[0]})"
            ) from error


class SharedEngine:
    """An engine on every rank, each of which does its part of the jobs; all of them get all results."""

    def __init__(self, engine: Engine, ranks: Ranks) -> None:
        self._engine, self._ranks = engine, ranks

    def map(self, stage: Stage, policy: ActingPolicy, jobs: Sequence[Any], *, pinned: bool = False) -> list[Any]:
        """See `Engine.map`."""
        share = self._ranks.share(len(jobs))
        results = self._engine.map(stage, policy, jobs[share.start : share.stop], pinned=pinned)
        return [result for part in self._ranks.gathered(results) for result in part]

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()
