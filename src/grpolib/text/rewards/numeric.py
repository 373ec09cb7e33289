"""Equal numbers, however they are written; nothing is evaluated."""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grpolib.text.rewards.answers import check_tag, tagged
from grpolib.text.rewards.columns import column, graded
from grpolib.text.rewards.protocol import Scores

LONGEST = 100
"""Characters that a number may have: exact arithmetic on longer ones takes time."""

_DECIMAL = r"(?:[0-9]+(?:,[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_FOUND = re.compile(rf"(?:(?<![\w).])[-+])?{_DECIMAL}(?:/{_DECIMAL})?", re.ASCII)
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_PLAIN = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")


def parse_number(text: str) -> Fraction | None:
    """The exact value of a decimal (1,000 or 1000, .5, 1e3) or of a fraction of two; None for anything else.

    Commas must stand between thousands. Digits are ASCII; of the other signs only the minus U+2212 is known.

    >>> parse_number("-1,000.5"), parse_number("1/2"), parse_number("1,00")
    (Fraction(-2001, 2), Fraction(1, 2), None)
    """
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if len(text) > LONGEST:
        return None
    numerator, slash, denominator = text.partition("/")
    top, bottom = _parse_decimal(numerator), _parse_decimal(denominator) if slash else Fraction(1)
    return top / bottom if top is not None and bottom else None


def _parse_decimal(text: str) -> Fraction | None:
    sign, digits = (text[0], text[1:]) if text[:1] in ("-", "+") else ("", text)
    whole, point, rest = digits.partition(".")
    if "," in whole:
        if not _THOUSANDS.fullmatch(whole):
            return None
        digits = whole.replace(",", "") + point + rest
    return Fraction(sign + digits) if _PLAIN.fullmatch(sign + digits) else None


def last_number(text: str) -> Fraction | None:
    """The value of the last thing in a text that looks like a number; None if it is none, or where there is nothing.

    >>> last_number("3 apples cost $1,250.")
    Fraction(1250, 1)
    """
    found = deque(_FOUND.finditer(text.replace("\N{MINUS SIGN}", "-")), maxlen=1)
    return parse_number(found[0].group()) if found else None


@dataclass(frozen=True)
class NumberEquals:
    """1 where the completion's number is the reference's, as exact fractions: 0.5 is 1/2; else 0. No reference: None.

    Args:
        tag: None takes the last number of the completion; a word takes what stands between `<tag>` and `</tag>`,
            once, which must be a number and nothing else.
        reference: Column of numbers, or of texts that are one.
        relative_tolerance: Largest |answer - reference| / |reference|, >= 0; 0 wants equality.

    Raises:
        ValueError: A reference is no number.

    >>> NumberEquals()(["2 x 500?"], ["That makes 1,000."], answer=["1000"])
    [1.0]
    """

    tag: str | None = None
    reference: str = "answer"
    relative_tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_tag(self, self.tag)
        if not 0 <= self.relative_tolerance < 1:
            raise ValueError(f"{self}: relative_tolerance must be in [0, 1)")

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        return graded(self._grade, completions, column(self, columns, self.reference))

    def _grade(self, completion: str, reference: object) -> float:
        answer, expected = self._answer(completion), parse_number(str(reference))
        if expected is None:
            raise ValueError(f"{self}: the reference {reference!r} is no number; None stands for no reference")
        return float(answer is not None and abs(answer - expected) <= Fraction(self.relative_tolerance) * abs(expected))

    def _answer(self, completion: str) -> Fraction | None:
        if self.tag is None:
            return last_number(completion)
        inside = tagged(completion, self.tag)
        return None if inside is None else parse_number(inside)
