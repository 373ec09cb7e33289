import json
import os
import threading
import time

import pytest

from grpolib.text.rewards import judges
from grpolib.text.rewards.judges import Judge, read_line, write_line

REGEX = Judge("regex.py", 0.5, {"pattern": "(a+)+b", "flags": 0})
CATASTROPHIC = {"text": "a" * 60}


SEVENS = """
import os

def make_judge():
    def judge(**question):
        {}
        return 7
    return judge
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A judge whose script is the text given."""
    for name in ("launch.py", "serve.py"):
        (tmp_path / name).write_text((judges.CHILDREN / name).read_text())
    monkeypatch.setattr(judges, "CHILDREN", tmp_path)

    def judge(source, seconds=2.0, **settings):
        (tmp_path / "script.py").write_text(source)
        return Judge("script.py", seconds, settings)

    return judge


def test_verdicts_come_in_order():
    assert REGEX([{"text": "ab"}, {"text": "b"}, None, {"text": "aaab"}]) == [True, False, None, True]


def test_without_a_question_nobody_is_called(monkeypatch):
    monkeypatch.setattr(judges, "start", None)
    assert REGEX([]) == []
    assert REGEX([None, None]) == [None, None]


def test_after_a_question_that_takes_too_long_the_next_one_is_answered():
    started = time.monotonic()
    assert REGEX([{"text": "ab"}, CATASTROPHIC, {"text": "ab"}, CATASTROPHIC, {"text": "b"}]) == [
        True, None, True, None, False]  # fmt: skip
    assert time.monotonic() - started < 10


def test_any_thread_may_ask():
    found = []
    thread = threading.Thread(target=lambda: found.append(REGEX([{"text": "ab"}, CATASTROPHIC])))
    thread.start()
    thread.join()
    assert found == [[True, None]]


@pytest.mark.parametrize(
    "text", ["", "\n", "a\nb", "\x00", "\ud800", "é", "٣", "x" * 10**6, '"}\n{"text": "ab"}\nnull']
)
def test_any_text_is_one_question(text):
    assert REGEX([{"text": text}, {"text": "ab"}]) == [False, True]


def test_a_judge_that_raises_exits_or_dies_says_nothing(script):
    questions = ["1", "1/0", "exit(0)", "os._exit(0)", "1", "os.kill(os.getpid(), 9)", "[0] * 10**12", "1"]
    verdicts = script(SEVENS.format("eval(question['text'])"))([{"text": text} for text in questions])
    assert verdicts == [7, None, None, None, 7, None, None, 7]


def test_what_a_judge_prints_is_no_verdict(script):
    printing = "print('true', flush=True)"
    assert script(printing + SEVENS.format(printing))([{"text": ""}] * 2) == [7, 7]


def test_a_verdict_that_is_no_json_is_none(script):
    writing = SEVENS.format("question['n'] and os.write(question['n'], b'true or false\\n')")
    # Some descriptor is the pipe to us.
    assert script(writing)([{"n": 0}, *({"n": n} for n in range(3, 8)), {"n": 0}])[::6] == [7, 7]


def test_a_judge_that_does_not_start_is_an_error(script):
    with pytest.raises(RuntimeError, match=r"the judge script.py did not start.*no_such_package"):
        script("import no_such_package")([{}])
    with pytest.raises(RuntimeError, match=r"did not start.*ZeroDivisionError"):
        script("def make_judge(): 1/0")([{}])


def test_a_judge_that_starts_for_ever_is_an_error(script, monkeypatch):
    monkeypatch.setattr(judges, "STARTING", 0.3)
    with pytest.raises(RuntimeError, match="did not start"):
        script("while True: pass")([{}])


def test_a_judge_starts_no_processes(script):
    assert script(SEVENS.format("os.fork()"))([{}]) == [None]
    assert script(SEVENS)([{}]) == [7]


def test_an_interrupt_leaves_nobody(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(judges, "write_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        REGEX([{"text": "ab"}])


# Lines.


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as reader, os.fdopen(writing, "wb", 0) as writer:
        yield reader, writer


def test_a_line_may_come_in_parts(pipe):
    reader, writer = pipe
    text = json.dumps("x" * 10**6).encode()
    thread = threading.Thread(target=write_line, args=(writer, text))
    thread.start()
    assert read_line(reader, 5.0) == text + b"\n"
    thread.join()


def test_a_line_that_does_not_come(pipe):
    reader, writer = pipe
    writer.write(b"half")
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        read_line(reader, 0.1)
    writer.close()
    with pytest.raises(EOFError):
        read_line(reader, 5.0)
