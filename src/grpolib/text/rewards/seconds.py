"""Time limits, as users give them."""

import math


def check_seconds(reward: object, seconds: float) -> None:
    """Raise unless a time limit is positive and finite."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"{reward}: seconds must be > 0 and finite")
