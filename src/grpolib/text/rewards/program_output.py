"""Programs that print what they should."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpolib.text.rewards.answers import code_of
from grpolib.text.rewards.columns import column
from grpolib.text.rewards.parallel import graded_in_threads
from grpolib.text.rewards.programs import LimitedPython, RunProgram
from grpolib.text.rewards.protocol import Scores


@dataclass(frozen=True)
class ProgramOutput:
    """1 where the completion's program prints the expected output in every case of its row, else 0. No cases: None.

    The program is the last fenced block of the completion, or all of it. It runs once per case, sees that case's input
    and never what is expected, so no trick inside it can claim success. White space at the ends of lines and of the
    output does not count.

    Args:
        cases: Column of sequences of pairs (input, expected output).
        run: Where programs run; give a sandbox of your own for more than the limits of `LimitedPython`.
        threads: Programs at a time; None for as many as there are cores.

    Raises:
        ValueError: A row with an empty sequence of cases, which any program would pass.

    >>> ProgramOutput()(["Double it."], ["print(2 * int(input()))"], cases=[[("2", "4"), ("-1", "-2")]])
    [1.0]
    """

    cases: str = "cases"
    run: RunProgram = field(default_factory=LimitedPython)
    threads: int | None = None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Sequence[Any]) -> Scores:
        """The values; see the class."""
        cases = column(self, columns, self.cases)
        for row, pairs in enumerate(cases):
            if pairs is not None and not len(pairs):
                raise ValueError(f"row {row} has no cases, so any program would pass: give some, or None")
        return graded_in_threads(self._grade, completions, cases, self.threads)

    def _grade(self, completion: str, cases: Sequence[tuple[str, str]]) -> float:
        program = code_of(completion)
        return float(all(_prints(self.run(program, given), expected) for given, expected in cases))


def _prints(output: str | None, expected: str) -> bool:
    return output is not None and _lines(output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
