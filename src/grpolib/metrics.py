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
        "return_mean": _mean(returns[kept]),
        "group_return_std": _mean(spread),
        "degenerate_fraction": _mean(spread < DEGENERATE),
        "near_degenerate_fraction": _mean(spread < NEAR_DEGENERATE),
        "length_mean": float(lengths.float().mean()),
        "length_max": float(lengths.max()),
        "living_peers": _mean_living_peers(batch),
        # Counts: with several ranks, each has given its own.
        **{name: float(v.sum()) if name.endswith("_groups") else _mean(v) for name, v in batch.metrics.items()},
    }


def _mean_living_peers(batch: GroupBatch[Any]) -> float:
    """Members of the group that run at the same time, itself included, at the average step."""
    horizon = int(batch.lengths.max())
    cells = batch.group_ids[batch.episode_ids] * horizon + batch.timesteps
    return float(torch.bincount(cells)[cells].double().mean())


def _mean(values: Tensor) -> float:
    """0 where nothing counts."""
    return float(values.double().sum()) / max(len(values), 1)


def joined(*parts: Metrics) -> Metrics:
    """All of them in one.

    Raises:
        ValueError: A name that stands in two: a loss's metric must not hide one of the trainer's.
    """
    whole: Metrics = {}
    for part in parts:
        taken = whole.keys() & part.keys()
        if taken:
            raise ValueError(f"the metric {min(taken)!r} stands for two things: give the one of your loss another name")
        whole |= part
    return whole


def merged(name: str, values: Tensor, counts: Tensor) -> Tensor:
    """One value of a minibatch from those of its parts: the sum of the losses, the extremes, or the mean over rows.

    Args:
        name: Of the metric.
        values: One per part.
        counts: The rows that count in each part; a part without any has no say.
    """
    if name == "loss":
        return values.sum()
    if not bool(counts.any()):
        return values[0]
    values, counts = values[counts > 0], counts[counts > 0]
    if name.endswith(("_min", "_max")):
        return values.min() if name.endswith("_min") else values.max()
    return (values * counts).sum() / counts.sum()


class MetricMeans:
    """Collects the metrics of the minibatches on their device; read once an iteration.

    Names that end in `_min` or `_max` keep the extreme, all others the mean over the minibatches.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], list[Tensor]] = {}

    def add(self, names: Sequence[str], values: Tensor) -> None:
        """Take in one minibatch's: a vector of values, and their names."""
        self._rows.setdefault(tuple(names), []).append(values)

    def read(self) -> Metrics:
        """The collected metrics as Python floats, and whether every ratio had to be 1 (a single update)."""
        updates = sum(len(rows) for rows in self._rows.values())
        metrics: Metrics = {"updates": updates, "ratio_is_one_by_construction": float(updates == 1)}
        columns: dict[str, list[Tensor]] = {}
        for names, rows in self._rows.items():
            for name, column in zip(names, torch.stack(rows).double().cpu().unbind(1), strict=True):
                columns.setdefault(name, []).append(column)
        return joined(metrics, {name: float(_reduced(name, torch.cat(parts))) for name, parts in columns.items()})


def _reduced(name: str, column: Tensor) -> Tensor:
    if name.endswith("_min"):
        return column.min()
    return column.max() if name.endswith("_max") else column.mean()
