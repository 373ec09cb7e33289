"""The form of a completion, whatever it says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpolib.text.rewards.judges import Judge
from grpolib.text.rewards.protocol import Scores
from grpolib.text.rewards.seconds import check_seconds

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class ThinkAnswer:
    r"""1 for `<think>...</think> <answer>...</answer>` and nothing else, each tag exactly once, in this order; else 0.

    White space may stand around the two parts. The scan is linear; no regular expression is involved.

    Args:
        prompt_opens: The prompt ends with `<think>`, so the completion starts behind it.

    Source: DeepSeek-R1 (arXiv:2501.12948), section 2.2.2, format rewards.

    >>> ThinkAnswer()(["?", "?"], ["<think>2 + 2</think>\n<answer>4</answer>", "<answer>4</answer>"])
    [1.0, 0.0]
    """

    prompt_opens: bool = False

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        return [float(_thinks_then_answers(TAGS[0] * self.prompt_opens + text)) for text in completions]


def _thinks_then_answers(text: str) -> bool:
    if any(text.count(tag) != 1 for tag in TAGS):
        return False
    before, _, rest = text.partition("<think>")
    _, _, rest = rest.partition("</think>")
    between, _, rest = rest.partition("<answer>")
    _, closing, after = rest.partition("</answer>")
    # A tag out of order leaves a partition without what it looks for.
    return bool(closing) and not (before + between + after).strip()


@dataclass(frozen=True)
class FullMatch:
    r"""1 where a regular expression matches the whole completion, else 0; also where the match takes too long.

    Patterns with nested repetitions take exponential time on texts made for them, so they run in another process, one
    per batch.

    Args:
        pattern: For `re.fullmatch`.
        flags: Of `re`, such as re.DOTALL.
        seconds: Wall-clock time for one completion.

    >>> FullMatch(r"\d+")(["?", "?"], ["42", "42?"])
    [1.0, 0.0]
    """

    pattern: str
    flags: int = 0
    seconds: float = 1.0

    def __post_init__(self) -> None:
        check_seconds(self, self.seconds)
        try:
            re.compile(self.pattern, self.flags)
        except re.error as error:
            raise ValueError(f"{self}: no regular expression: {error}") from error

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        judge = Judge("regex.py", self.seconds, {"pattern": self.pattern, "flags": int(self.flags)})
        return [float(verdict is True) for verdict in judge([{"text": text} for text in completions])]
