"""The numbers of one iteration; docs/metrics.md explains each."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpolib.batch import GroupBatch
from grpolib.functional import explained_variance, group_std

Metrics: TypeAlias = dict[str, int | float]

DEGENERATE = 1e-4
"""Below this spread of returns a group carries no signal."""
NEAR_DEGENERATE = 1.0
"""Below this spread the returns of a group lie within about a reward point."""


def batch_metrics(batch: GroupBatch[Any], value_targets: Tensor | None = None) -> Metrics:
    """What was sampled: returns, lengths, how far the members of a group are apart, how good the critic was."""
    metrics = _segment_metrics(batch) if batch.first_timesteps is not None else _group_metrics(batch)
    metrics["truncated_fraction"] = float((~batch.terminated).float().mean())
    if batch.penalties is not None:
        metrics["penalty_mean"] = float(batch.penalties.mean())
    if batch.values is not None and value_targets is not None:
        metrics["explained_variance"] = float(explained_variance(batch.values, value_targets, mask=batch.counted))
    return metrics


def _segment_metrics(batch: GroupBatch[Any]) -> Metrics:
    """Of the episodes that finished lately: a rollout's segments are cut anywhere."""
    finished = batch.metrics
    return {
        "return_mean": float(finished["returns"].mean()),
        "length_mean": float(finished["lengths"].float().mean()),
    }


def _group_metrics(batch: GroupBatch[Any]) -> Metrics:
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
        "living_peers": _mean_living_peers(batch),
    }


def _mean_living_peers(batch: GroupBatch[Any]) -> float:
    """Members of the group that run at the same time, itself included, at the average step."""
    horizon = int(batch.lengths.max())
    cells = batch.group_ids[batch.episode_ids] * horizon + batch.timesteps
    return float(torch.bincount(cells)[cells].double().mean())


class MetricMeans:
    """Collects the metrics of the minibatches on their device; read once an iteration.

    Names that end in `_min` or `_max` keep the extreme, all others the mean over the minibatches.
    """

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._rows: list[Tensor] = []

    def add(self, names: Sequence[str], values: Tensor) -> None:
        """Take in one minibatch's: a vector of values, and their names."""
        self._names = names
        self._rows.append(values)

    def read(self) -> Metrics:
        """The collected metrics as Python floats, and whether every ratio had to be 1 (a single update)."""
        updates = len(self._rows)
        metrics: Metrics = {"updates": updates, "ratio_is_one_by_construction": float(updates == 1)}
        if updates == 0:
            return metrics
        table = torch.stack(self._rows).double().cpu()
        for name, column in zip(self._names, table.unbind(1), strict=True):
            metrics[name] = float(_reduced(name, column))
        return metrics


def _reduced(name: str, column: Tensor) -> Tensor:
    if name.endswith("_min"):
        return column.min()
    return column.max() if name.endswith("_max") else column.mean()
