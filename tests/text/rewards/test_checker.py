import os
import sys
import time

import pytest

from grpolib.text.rewards import Checker, Limits, score

QUICK = Limits(seconds=1.0, memory=None, processes=None)
HOSTILE = ["", "\x00", "\ud800", "; true", "$(true)", "`true`", "&& true", "| true", "--help", "-e 0", "x" * 10**6, "٣"]


def values(reward, *completions, **columns):
    return score(reward, ["?"] * len(completions), list(completions), columns)


def test_a_command_reads_its_standard_input():
    assert values(Checker(["grep", "-qx", "QED"]), "QED", "proof\nQED", "Trust me.") == [1.0, 1.0, 0.0]


def test_a_command_reads_a_file():
    checker = Checker([sys.executable, "-I", "-S", "{file}"], suffix=".py")
    assert values(checker, "import sys; assert sys.argv == ['completion.py']", "1/0") == [1.0, 0.0]
    assert values(Checker(["grep", "-qx", "--file={file}", "completion"]), "QED", "") == [1.0, 0.0]


def test_the_file_has_a_suffix():
    assert values(Checker(["test", "completion.lean", "-ef", "{file}"], suffix=".lean"), "x") == [1.0]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_a_command_or_an_option(text):
    assert values(Checker(["grep", "-qx", "QED"]), text) == [0.0]
    assert values(Checker(["grep", "-qx", "QED", "{file}"]), text) == [0.0]


def test_braces_of_a_completion_stay_as_they_are():
    assert values(Checker(["grep", "-qx", "[{]file} {0}"]), "{file} {0}") == [1.0]


def test_what_is_to_be_proven_stands_before_the_proof():
    checker = Checker(["grep", "-qzx", "theorem: proof"], before="theorem")
    assert values(checker, "proof", "theorem: proof", "proof", theorem=["theorem: ", "", None]) == [1.0, 1.0, None]
    with pytest.raises(ValueError, match="Checker reads the column 'theorem'"):
        values(checker, "proof")


def test_a_command_that_takes_too_long_is_no_success():
    started = time.monotonic()
    assert values(Checker(["sh", "-c", "sleep 60 & sleep 60"], limits=QUICK), "x") == [0.0]
    assert time.monotonic() - started < 5


def test_a_command_that_floods_or_dies_is_no_success():
    assert values(Checker(["sh", "-c", "yes"], limits=QUICK), "x") == [0.0]
    assert values(Checker(["sh", "-c", "kill -9 $$"], limits=QUICK), "x") == [0.0]


def test_the_environment_is_what_is_given(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    assert values(Checker(["sh", "-c", 'test -z "$SECRET_KEY"']), "x") == [1.0]
    assert values(Checker(["sh", "-c", 'test "$A" = 1'], environment={"A": "1"}), "x") == [1.0]


def test_links_do_not_lead_out(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    script = f"ln -s {kept} link; ln -s {tmp_path} folder; mkdir a; chmod 0 a"
    assert values(Checker(["sh", "-c", script]), "x") == [1.0]
    assert kept.read_text() == "mine"
    assert os.listdir(tmp_path) == ["kept"]


def test_commands_are_lists_of_programs_that_exist():
    with pytest.raises(FileNotFoundError, match="there is no program 'no-such-program': install it"):
        Checker(["no-such-program"])
    with pytest.raises(ValueError, match="command is a list of words"):
        Checker([])


@pytest.mark.usefixtures("without_shape_hook")
def test_a_line_for_a_shell_is_no_command():
    with pytest.raises(ValueError, match="no shell reads it"):
        Checker("grep -q QED")
