import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpolib.text.rewards import SoftOverlong, score


def penalty(length, **settings):
    return score(SoftOverlong(len, **settings), ["?"], ["x" * length], {})[0]


@pytest.mark.parametrize(
    # L_max 100, L_cache 20: flat up to 80, then (80 - |y|) / 20.
    ("length", "value"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0), (10_000, -1.0)],
)
def test_the_published_line(length, value):
    assert penalty(length, max_length=100, buffer=20) == pytest.approx(value, abs=1e-12)


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 300))
def test_it_never_rises_and_stays_in_bounds(max_length, buffer, length):
    settings = {"max_length": max(max_length, buffer), "buffer": min(max_length, buffer)}
    assert -1 <= penalty(length + 1, **settings) <= penalty(length, **settings) <= 0


def test_lengths_are_counted_as_the_user_says():
    reward = SoftOverlong(lambda text: len(text.split()), max_length=4, buffer=2)
    assert score(reward, ["?"] * 2, ["a" * 100, "a b c"], {}) == [0.0, -0.5]


@pytest.mark.parametrize(("max_length", "buffer"), [(10, 0), (10, 11), (0, 0), (-5, -5)])
def test_the_bounds_of_the_buffer(max_length, buffer):
    with pytest.raises(ValueError, match="buffer must be between 1 and max_length"):
        SoftOverlong(len, max_length=max_length, buffer=buffer)
