"""Whether a whole text matches a pattern."""

import re
from collections.abc import Callable


def make_judge(pattern: str, flags: int) -> Callable[[str], bool]:
    """A judge of texts."""
    compiled = re.compile(pattern, flags)

    def judge(text: str) -> bool:
        return compiled.fullmatch(text) is not None

    return judge
