import json
import os
import subprocess
import sys

import pytest

from grpolib.text.rewards.limits import CHILDREN

SHOWING = (
    "import os, resource as r; print(os.getresuid(), os.getresgid(), os.getgroups(), r.getrlimit(r.RLIMIT_NOFILE))"
)


def launched(*command, user=None, **resources):
    settings = json.dumps({"user": user, "resources": resources})
    python = (sys.executable, "-I", "-S")
    return subprocess.run(
        [*python, str(CHILDREN / "launch.py"), settings, *(command or (*python, "-c", SHOWING))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_command_has_both_limits():
    assert launched(RLIMIT_NOFILE=32).stdout.endswith("(32, 32)\n")


def test_a_limit_above_the_hard_one_is_the_hard_one():
    inner = (sys.executable, "-I", "-S", "-c", SHOWING)
    raising = json.dumps({"user": None, "resources": {"RLIMIT_NOFILE": 10**6}})
    nested = launched(sys.executable, "-I", "-S", str(CHILDREN / "launch.py"), raising, *inner, RLIMIT_NOFILE=32)
    assert nested.stdout.endswith("(32, 32)\n")


def test_what_does_not_start_says_why():
    assert "No such file" in launched("/no/such/command").stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
def test_another_user_keeps_nothing_but_reading():
    user = 61184
    ids = f"({user}, {user}, {user})"
    assert launched(user=user, RLIMIT_NOFILE=32).stdout == f"{ids} {ids} [] (32, 32)\n"
    status = launched("/bin/cat", "/proc/self/status", user=user).stdout.splitlines()
    sets = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Cap")}
    # 4 is the bit of CAP_DAC_READ_SEARCH, where this process has it.
    assert {sets[name] for name in ("CapPrm:", "CapEff:", "CapInh:", "CapAmb:")} <= {0, 4}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_who_is_not_root_cannot_become_another():
    assert "not permitted" in launched(user=os.geteuid() + 1).stderr
