"""The numbers of one iteration; docs/metrics.md explains each."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpolib.batch import GroupBatch
from grpolib.functional import group_std

Metrics: TypeAlias = dict[str, float]

DEGENERATE = 1e-4
"""Below this spread of returns a group carries no signal."""
NEAR_DEGENERATE = 1.0
"""Below this spread the returns of a group lie within about a reward point."""


def batch_metrics(batch: GroupBatch[Any]) -> Metrics:
    """What was sampled: returns, lengths, and how far the members of a group are apart."""
    returns = batch.episode_returns
    lengths = batch.lengths
    kept = slice(None) if batch.scored is None else batch.scored
    spread = group_std(returns[kept], batch.group_ids[kept])
    return {
        "return_mean": float(returns[kept].mean()),
        "group_return_std": float(spread.mean()),
        "degenerate_fraction": float((spread < DEGENERATE).float().mean()),
        "near_degenerate_fraction": float((spread < NEAR_DEGENERATE).float().mean()),
        "length_mean": float(lengths.float().mean()),
        "length_max": float(lengths.max()),
        "truncated_fraction": float((~batch.terminated).float().mean()),
    }


class MetricMeans:
    """Collects the metrics of the minibatches on their device; read once an iteration.

    Names that end in `_min` or `_max` keep the extreme, all others the mean over the minibatches.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Take in one minibatch's."""
        for name, value in metrics.items():
            if name not in self._totals:
                self._totals[name] = value.detach().clone()
            elif name.endswith("_min"):
                torch.minimum(self._totals[name], value, out=self._totals[name])
            elif name.endswith("_max"):
                torch.maximum(self._totals[name], value, out=self._totals[name])
            else:
                self._totals[name] += value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> Metrics:
        """The collected metrics as Python floats."""
        return {
            name: float(total) / (1 if name.endswith(("_min", "_max")) else self._counts[name])
            for name, total in self._totals.items()
        }
