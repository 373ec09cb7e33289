"""docs/rewards.md runs as it stands."""

import re
from pathlib import Path

import pytest

from grpolib.text import rewards

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"


def blocks():
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_every_block_runs():
    pytest.importorskip("math_verify")
    pytest.importorskip("reasoning_gym")
    names = {}
    for block in blocks():
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks()) > 8


def test_every_public_name_is_on_the_page():
    names = [name for name, thing in vars(rewards).items() if getattr(thing, "__module__", "").startswith("grpolib")]
    missing = {name for name in names if name not in PAGE.read_text()}
    assert missing == set()
