import os
import stat

import pytest

from grpolib.text.rewards.directories import private_directory, remove_tree


def test_a_directory_is_its_owners_alone():
    with private_directory() as directory:
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_it_goes_also_when_something_is_raised():
    with pytest.raises(KeyError), private_directory() as directory:
        raise KeyError
    assert not os.path.exists(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_it_can_be_another_users():
    with private_directory(61184) as directory:
        assert (os.stat(directory).st_uid, os.stat(directory).st_gid) == (61184, 61184)


def test_links_are_removed_and_not_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o755)
    (kept / "file").write_text("mine")
    with private_directory() as directory:
        os.symlink(kept, f"{directory}/folder")
        os.symlink(kept / "file", f"{directory}/file")
        os.mkdir(f"{directory}/inner")
        os.symlink(kept, f"{directory}/inner/folder")
        os.symlink("folder", f"{directory}/loop")
        os.symlink("self", f"{directory}/self")
        os.link(kept / "file", f"{directory}/hard")
    assert (kept / "file").read_text() == "mine"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o755


def test_no_permission_is_needed():
    with private_directory() as directory:
        os.makedirs(f"{directory}/a/b/c")
        open(f"{directory}/a/b/c/file", "w").close()
        for closed in ("a/b/c/file", "a/b/c", "a/b", "a", ""):
            os.chmod(os.path.join(directory, closed), 0)


def test_names_do_not_collide():
    with private_directory() as directory:
        for name in ("0", "1", "0/0", "0/1", "0/0/0", "a", "a/0"):
            os.mkdir(f"{directory}/{name}")
        for name in ("2", "0/2", "0/0/2", "a/2"):
            open(f"{directory}/{name}", "w").close()


def test_special_files():
    with private_directory() as directory:
        os.mkfifo(f"{directory}/pipe")
        for name in ("-rf", " ", "\n", "é", "x" * 255):
            open(f"{directory}/{name}", "w").close()
        open(os.fsencode(directory) + b"/\xff", "w").close()


def test_any_depth():
    # Deeper than Python recurses and longer than a path may be.
    here = os.open(".", os.O_RDONLY)
    with private_directory() as directory:
        os.chdir(directory)
        try:
            for _ in range(1200):
                os.mkdir("deeper")
                os.chdir("deeper")
        finally:
            os.fchdir(here)
            os.close(here)


def test_only_a_directory_can_be_removed(tmp_path):
    (tmp_path / "kept").mkdir()
    os.symlink(tmp_path / "kept", tmp_path / "link")
    with pytest.raises(OSError, match="link"):
        remove_tree(str(tmp_path / "link"))
    assert (tmp_path / "kept").exists()
