"""DAPO's dynamic sampling: groups without a signal are drawn again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from grpolib.batch import GroupBatch, concatenate, select_groups
from grpolib.sampling import GroupSampler, Sampler


class DynamicSampling:
    """A sampler that leaves out groups whose returns are all equal, and samples others instead.

    Such a group has advantage 0 everywhere, so a batch of M groups would hold fewer that teach something. Metrics:
    `dropped_groups`, how many were left out; `missing_groups`, how many were still missing when the refills were
    used up (the batch is smaller then; where no group differs at all, the first ones are kept).

    Args:
        sampler: Where groups come from.
        tolerance: Highest minus lowest return of a group's scored members up to which it is left out, >= 0.
        max_refills: Further calls of the sampler per step, >= 1.

    Raises:
        ValueError: A number out of range, or a sampler that leaves groups out itself.

    Source: DAPO (arXiv:2503.14476) section 3.2.
    """

    def __init__(self, sampler: Sampler, *, tolerance: float = 1e-6, max_refills: int = 8) -> None:
        if not tolerance >= 0 or max_refills < 1:
            raise ValueError(f"tolerance is {tolerance}, max_refills {max_refills}: they must be >= 0 and >= 1")
        if isinstance(sampler, GroupSampler) and sampler.bad_groups == "drop":
            raise ValueError(
                "the sampler has bad_groups='drop', and a refill of which all groups are dropped has none to give: "
                "set bad_groups='raise'"
            )
        self.sampler = sampler
        self.tolerance = tolerance
        self.max_refills = max_refills

    @property
    def max_length(self) -> int | None:
        """See `Sampler.max_length`."""
        return self.sampler.max_length

    def sample(
        self, policy: Any, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[Any]:
        """`num_groups` groups that differ, or as many as the refills gave; see `Sampler.sample`."""
        kept: list[GroupBatch[Any]] = []
        first: list[GroupBatch[Any]] = []
        dropped, missing, following = 0, num_groups, first_group
        for _ in range(1 + self.max_refills):
            batch = self.sampler.sample(policy, missing, seed, first_group=following)
            first = first or [batch]
            following += missing
            differ = self._differ(batch)
            dropped += int((~differ).sum())
            if bool(differ.any()):
                kept.append(select_groups(batch, differ.nonzero().squeeze(1)))
                missing -= int(differ.sum())
            if missing == 0:
                break
        return _counted(kept or first, dropped, missing)

    def close(self) -> None:
        """Close the sampler."""
        self.sampler.close()

    def _differ(self, batch: GroupBatch[Any]) -> Bool[Tensor, " M"]:
        returns = batch.episode_returns
        scored = torch.ones_like(batch.terminated) if batch.scored is None else batch.scored
        ends = (torch.full((batch.num_groups,), sign * torch.inf, dtype=returns.dtype) for sign in (1, -1))
        low, high = (
            start.scatter_reduce(0, batch.group_ids[scored], returns[scored], name)
            for start, name in zip(ends, ("amin", "amax"), strict=True)
        )
        return high - low > self.tolerance


def _counted(batches: Sequence[GroupBatch[Any]], dropped: int, missing: int) -> GroupBatch[Any]:
    batch = concatenate(batches)
    counts = {"dropped_groups": torch.tensor([float(dropped)]), "missing_groups": torch.tensor([float(missing)])}
    return replace(batch, metrics={**batch.metrics, **counts})
