"""What every test shares: one torch thread, hypothesis profiles, a way past the shape checker."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# `pytest --hypothesis-profile=...` chooses another than the first.
settings.register_profile("everyday", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=10_000)
settings.load_profile("everyday")


@pytest.fixture
def without_shape_hook() -> Iterator[None]:
    """Switch the run-time shape and type checks off for one test, as they are for users.

    The tests run with `--jaxtyping-packages=grpolib,beartype.beartype`: a call with a wrong shape or type then raises
    jaxtyping's `TypeCheckError` before the function's own check is reached. Every checked function asks the flag below
    at call time, so a test that wants to see the library's own `ValueError` or `TypeError` takes this fixture:

        @pytest.mark.usefixtures("without_shape_hook")
        def test_a_column_raises():
            with pytest.raises(ValueError, match="shape"):
                ...

    It reaches functions and methods, and so the checks that a dataclass makes in `__post_init__`.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
