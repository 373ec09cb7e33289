"""The answer, letter for letter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpolib.text.rewards.answers import check_tag, tagged
from grpolib.text.rewards.columns import column, graded
from grpolib.text.rewards.protocol import Scores


@dataclass(frozen=True)
class ExactMatch:
    r"""1 where the completion is the reference, white space around either aside; else 0. No reference: None.

    Args:
        tag: None compares the whole completion; a word what stands between `<tag>` and `</tag>`, once.
        reference: Column of texts, or of what `str` makes into one.

    >>> ExactMatch()(["2 + 2?"], [" 4\n"], answer=["4"])
    [1.0]
    """

    tag: str | None = None
    reference: str = "answer"

    def __post_init__(self) -> None:
        check_tag(self, self.tag)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        return graded(self._grade, completions, column(self, columns, self.reference))

    def _grade(self, completion: str, reference: object) -> float:
        answer = completion.strip() if self.tag is None else tagged(completion, self.tag)
        return float(answer == str(reference).strip())


def exact_match(prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
    """1 where the whole completion is the text in the column `answer`; see `ExactMatch`."""
    return ExactMatch()(prompts, completions, **columns)
