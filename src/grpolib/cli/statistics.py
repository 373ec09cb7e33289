"""What a few seeds say: the middle of them, how sure it is, and who is ahead."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000


def middle(values: Sequence[float]) -> float:
    """The interquartile mean: a quarter of the values, rounded down, is left out at each end."""
    from scipy.stats import trim_mean

    return float(trim_mean(values, 0.25))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of the interquartile mean; None of one value."""
    from scipy.stats import bootstrap, trim_mean

    if len(values) < 2:
        return None
    found = bootstrap(
        (values,),
        lambda resampled, axis: trim_mean(resampled, 0.25, axis=axis),
        method="percentile",
        n_resamples=RESAMPLES,
        rng=0,
    ).confidence_interval
    return float(found.low), float(found.high)


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How often a seed of ours is above one of theirs, over all pairs; a tie counts half.

    Source: Agarwal et al. (arXiv:2108.13264) section 4.3.
    """
    difference = np.subtract.outer(np.array(ours), np.array(theirs))
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())
