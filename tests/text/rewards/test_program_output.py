import pytest

from grpolib.text.rewards import LimitedPython, Limits, ProgramOutput, score

RUN = LimitedPython(Limits(seconds=1.0))
CASES = [("2", "4"), ("-1", "-2")]


def value(completion, cases=CASES, run=RUN):
    return score(ProgramOutput(run=run), ["?"], [completion], {"cases": [cases]})[0]


@pytest.mark.parametrize(
    "completion",
    ["print(2 * int(input()))", "```python\nprint(2 * int(input()), end='')\n```", "print(2 * int(input()), '\\n\\n')"],
)
def test_programs_that_print_what_they_should(completion):
    assert value(completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "print(4)",
        "print(-2)",
        "print(4)\nprint(-2)",
        "print(' ' + str(2 * int(input())))",
        "print(2 * int(input()))\nexit(1)",
        "print(2 * int(input()))\n1/0",
        "import sys\nprint(2 * int(input()), file=sys.stderr)",
        "print(2 * int(input()), flush=True)\nwhile True: pass",
        "while True: print(4)",
        "class Equal:\n    __eq__ = lambda *_: True\nprint(Equal())",
        "import os\nos.fork()\nprint(2 * int(input()))",
        "\x00",
        "\ud800",
    ],
)
def test_programs_that_do_not(completion):
    assert value(completion) == 0.0


def test_lines_count_and_white_space_at_their_ends_does_not():
    assert value("print('a  \\nb\\n')", [("", "a\nb")]) == 1.0
    assert value("print('a b')", [("", "a\nb")]) == 0.0
    assert value("print('a\\n\\nb')", [("", "a\nb")]) == 0.0


def test_what_is_expected_never_reaches_the_program():
    seen = []

    def sandbox(program, stdin, /):
        seen.append(program + stdin)
        return RUN(program, stdin)

    value("print(2 * int(input()))", [("1234", "2468")], sandbox)
    assert len(seen) == 1
    assert "2468" not in seen[0]


def test_the_first_failing_case_is_the_last_to_run():
    seen = []

    def sandbox(program, stdin, /):
        seen.append(stdin)

    assert value("print(1)", run=sandbox) == 0.0
    assert seen == ["2"]


def test_no_cases_no_value_and_an_empty_list_is_an_error():
    assert value("print(1)", None) is None
    with pytest.raises(ValueError, match="row 0 has no cases, so any program would pass"):
        value("print(1)", [])
