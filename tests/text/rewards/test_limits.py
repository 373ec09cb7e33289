import math
import os

import pytest

from grpolib.text.rewards import Limits, limits
from grpolib.text.rewards.limits import TRANSIENT_USERS, transient_user


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_time_is_positive_and_finite(seconds):
    with pytest.raises(ValueError, match="seconds must be > 0 and finite"):
        Limits(seconds=float(seconds))


@pytest.mark.parametrize("limit", ["memory", "file_size", "processes", "open_files"])
def test_no_limit_is_negative(limit):
    with pytest.raises(ValueError, match="limits are not negative"):
        Limits(**{limit: -1})


def test_none_stands_for_no_limit():
    names = Limits(memory=None, processes=None).resources().keys()
    assert not names & {"RLIMIT_AS", "RLIMIT_NPROC"}


def test_processor_time_is_rounded_up():
    assert Limits(seconds=0.1).resources()["RLIMIT_CPU"] == 1
    assert Limits(seconds=2.5).resources()["RLIMIT_CPU"] == 3


def test_no_core_is_dumped():
    assert Limits().resources()["RLIMIT_CORE"] == 0


@pytest.fixture
def root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("reads_all", "readable", "lends"), [(1, 0, 1), (0, 1, 1), (0, 0, 0)])
def test_root_lends_a_user_id_that_can_read_the_interpreter(monkeypatch, reads_all, readable, lends):
    monkeypatch.setattr(limits, "_may_read_everything", lambda: bool(reads_all))
    monkeypatch.setattr(limits, "_everyone_may_read", lambda file: bool(readable))
    assert {transient_user() in TRANSIENT_USERS for _ in range(100)} == {bool(lends)}


def test_nobody_else_lends_one(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert transient_user() is None


def test_what_everyone_may_read(tmp_path):
    file = tmp_path / "file"
    file.touch(mode=0o644)
    assert limits._everyone_may_read("/etc/passwd")
    file.chmod(0o600)
    assert not limits._everyone_may_read(str(file))
    file.chmod(0o644)
    tmp_path.chmod(0o700)
    assert not limits._everyone_may_read(str(file))
