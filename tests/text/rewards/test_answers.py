import time

import pytest

from grpolib.text.rewards import ExactMatch
from grpolib.text.rewards.answers import code_of, tagged


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer>", "4"),
        ("so\n<answer>\n 4 \n</answer> indeed", "4"),
        ("<answer></answer>", ""),
        ("<answer>a<b>c</b></answer>", "a<b>c</b>"),
        ("<answer>٤</answer>", "٤"),
        ("", None),
        ("4", None),
        ("<answer>4", None),
        ("4</answer>", None),
        ("</answer>4<answer>", None),
        ("<answer>4</answer><answer>5</answer>", None),
        ("<answer><answer>4</answer></answer>", None),
        ("<answer>5</answer> or 4</answer>", None),
        ("<ANSWER>4</ANSWER>", None),
        ("< answer>4</ answer>", None),
    ],
)
def test_what_stands_between_the_tags_once(text, answer):
    assert tagged(text, "answer") == answer


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("", ""),
        ("```\nx = 1\n```", "x = 1"),
        ("```python\nx = 1\n\ny = 2\n```\nthen", "x = 1\n\ny = 2"),
        ("```\nfirst\n```\nbetter:\n```\nsecond\n```", "second"),
        ("```\nfirst\n```\n```python\nnever closed", "first"),
        ("```python\nnever closed", "```python\nnever closed"),
        ("  ```\n  indented\n  ```", "  indented"),
        ("```\n```", ""),
    ],
)
def test_the_last_complete_block(text, code):
    assert code_of(text) == code


@pytest.mark.parametrize("scan", [lambda text: tagged(text, "answer"), code_of])
@pytest.mark.parametrize("part", ["<answer>", "</answer>", "<answer></answer>", "```\n", "<", "`", "\n"])
def test_scans_are_quick_whatever_the_text(scan, part):
    started = time.process_time()
    scan(part * 200_000)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("tag", ["", "<answer>", "the answer", "a>"])
def test_a_tag_is_a_word(tag):
    with pytest.raises(ValueError, match="tag is a word"):
        ExactMatch(tag=tag)
