"""Equal expressions, by math-verify."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpolib.text.rewards.answers import check_tag, tagged
from grpolib.text.rewards.columns import column
from grpolib.text.rewards.extras import require
from grpolib.text.rewards.judges import Judge
from grpolib.text.rewards.protocol import Scores
from grpolib.text.rewards.seconds import check_seconds

NOT_UNDERSTOOD = "reference not understood"


@dataclass(frozen=True)
class MathEquivalence:
    r"""1 where math-verify finds the completion's expression equal to the reference's: \frac{1}{2}, 0.5; else 0.

    None where there is no reference, or math-verify does not understand it.

    Several boxed answers are read as a set, which no single number equals. Where a verdict takes too long it is 0. The
    parsing happens in another process, one per batch (about a second), so that any thread may call this.

    Args:
        tag: None looks for the answer in the whole completion (\boxed{...} first, then formulas, then numbers); a word
            reads what stands between `<tag>` and `</tag>`, once, as one expression.
        reference: Column of texts, LaTeX or plain. Without `$` or `\boxed` around it, one is one expression.
        seconds: Wall-clock time for one completion.

    Raises:
        ImportError: math-verify is not installed.
    """

    tag: str | None = None
    reference: str = "answer"
    seconds: float = 5.0

    def __post_init__(self) -> None:
        require("math_verify", "MathEquivalence", "text")
        check_tag(self, self.tag)
        check_seconds(self, self.seconds)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        references = column(self, columns, self.reference)
        questions = [self._question(*row) for row in zip(completions, references, strict=True)]
        verdicts = Judge("mathematics.py", self.seconds, imports_packages=True)(questions)
        return [
            None if question is None or verdict == NOT_UNDERSTOOD else float(verdict is True)
            for question, verdict in zip(questions, verdicts, strict=True)
        ]

    def _question(self, completion: str, reference: object) -> Mapping[str, str] | None:
        if reference is None:
            return None
        answer = completion if self.tag is None else boxed(tagged(completion, self.tag) or "")
        return {"answer": answer, "reference": boxed(str(reference))}


def boxed(expression: str) -> str:
    r"""The expression in a \boxed{} unless it marks its formulas itself.

    >>> boxed("1/2")
    '\\boxed{1/2}'
    """
    return expression if "$" in expression or r"\boxed" in expression else rf"\boxed{{{expression}}}"
