"""What a sampler is."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from grpolib.batch import GroupBatch


@runtime_checkable
class Sampler(Protocol):
    """Where groups come from: environments, or prompts and completions."""

    @property
    def max_length(self) -> int | None:
        """Longest possible episode in steps, the divisor of the "constant" reduction; None where unknown."""
        ...

    def sample(
        self, policy: Any, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[Any]:
        """Sample groups with the policy as it is now.

        Args:
            policy: Acts; its parameters are not changed and no graph is kept.
            num_groups: M, >= 1.
            seed: Of (trainer seed, iteration). Group k draws from `group_seed(seed, k)` alone.
            first_group: Index of the first group.
        """
        ...

    def close(self) -> None:
        """Release environments and processes; may be called twice."""
        ...


def group_seed(seed: np.random.SeedSequence, group: int) -> np.random.SeedSequence:
    """The seed of one group: a function of (trainer seed, iteration, group), never of what ran before."""
    return np.random.SeedSequence(entropy=seed.entropy, spawn_key=(*seed.spawn_key, group))
