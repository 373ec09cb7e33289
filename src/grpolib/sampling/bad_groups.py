"""What becomes of a group whose environment gave numbers that are not finite."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch

from grpolib.batch import GroupBatch, concatenate
from grpolib.policies import ActingPolicy
from grpolib.sampling.engines import Run, close_run
from grpolib.sampling.lanes import NotFiniteError

logger = logging.getLogger(__name__)

BadGroups: TypeAlias = Literal["raise", "drop"]
"""Whether a group with a reward or observation that is not finite is an error, or is left out and counted."""


def check_bad_groups(choice: object) -> None:
    """Raise unless it is one of the two."""
    if choice not in get_args(BadGroups):
        raise ValueError(f"bad_groups is {choice!r}: choose 'raise' or 'drop'")


@dataclass(frozen=True)
class BadGroup:
    """Stands where a group would; small, since it comes from a worker."""

    reason: str


@dataclass(frozen=True)
class Dropping:
    """Runs groups, wherever that is, and gives a `BadGroup` for one that is not finite."""

    run: Run

    def __call__(self, policy: ActingPolicy, job: Any) -> GroupBatch[Any] | BadGroup:
        """The group of one job."""
        try:
            group: GroupBatch[Any] = self.run(policy, job)
        except NotFiniteError as error:
            return BadGroup(str(error))
        return group

    def close(self) -> None:
        """Close what runs them."""
        close_run(self.run)


def without_bad_groups(groups: Sequence[GroupBatch[Any] | BadGroup]) -> GroupBatch[Any]:
    """The other groups, with the number of bad ones as the metric `dropped_groups`.

    Raises:
        ValueError: All are bad.
    """
    reasons = [group.reason for group in groups if isinstance(group, BadGroup)]
    for reason in reasons:
        logger.warning("a group was dropped: %s", reason)
    kept = [group for group in groups if not isinstance(group, BadGroup)]
    if not kept:
        raise ValueError(f"all {len(reasons)} groups had to be dropped, the first because {reasons[0]}")
    batch = concatenate(kept)
    return replace(batch, metrics={**batch.metrics, "dropped_groups": torch.tensor([float(len(reasons))])})
