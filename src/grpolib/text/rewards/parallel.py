"""Rows graded by threads, each of which waits for a process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpolib.sampling.processes import available_cores
from grpolib.text.rewards.protocol import Scores


def graded_in_threads(
    grade: Callable[[str, Any], float], completions: Sequence[str], references: Sequence[Any], threads: int | None
) -> Scores:
    """`grade(completion, reference)` per row, several at a time; None where the reference is None.

    Args:
        grade: Called from several threads.
        completions: Texts.
        references: One per completion.
        threads: >= 1; None for as many as there are cores.
    """
    pool = ThreadPoolExecutor(available_cores() if threads is None else threads)
    try:
        jobs = [
            None if reference is None else pool.submit(grade, completion, reference)
            for completion, reference in zip(completions, references, strict=True)
        ]
        return [None if job is None else job.result() for job in jobs]
    finally:
        pool.shutdown(cancel_futures=True)
