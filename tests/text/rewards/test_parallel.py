import threading
import time

import pytest

from grpolib.text.rewards.parallel import graded_in_threads


def test_rows_keep_their_order_and_run_at_once():
    together = threading.Barrier(3, timeout=5)

    def grade(completion, reference):
        together.wait()
        time.sleep(0.01 * reference)
        return float(completion)

    assert graded_in_threads(grade, ["0", "1", "2"], [3, 2, 1], 3) == [0.0, 1.0, 2.0]


def test_no_reference_no_value():
    assert graded_in_threads(lambda completion, reference: 1.0, ["a", "b"], [None, 0], None) == [None, 1.0]


def test_what_is_raised_is_raised_and_the_rest_is_dropped():
    graded = []

    def grade(completion, reference):
        graded.append(completion)
        if completion == "bad":
            raise KeyError("mine")
        return 1.0

    with pytest.raises(KeyError, match="mine"):
        graded_in_threads(grade, ["bad"], [0], 1)
    assert graded == ["bad"]
    with pytest.raises(ValueError, match="max_workers"):
        graded_in_threads(grade, ["a"], [0], 0)
