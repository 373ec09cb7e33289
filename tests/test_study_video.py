"""Films of a run of the study: what is shown, in which order, and that the files play."""

import sys
from pathlib import Path

import environments  # noqa: F401  Box2D, imported with its warnings off
import gymnasium
import pytest
from PIL import Image

from grpolib import save_policy

imageio = pytest.importorskip("imageio", reason="needs the extra video")
BENCHMARKS = Path(__file__).parent.parent / "examples" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import lunarlander_study as cli  # noqa: E402
from study import video  # noqa: E402
from study.rows import ENV, new_policy  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_shape_hook")


@pytest.fixture
def run_folder(tmp_path):
    """A run of policies that were never trained; they crash soon."""
    folder = tmp_path / "grpo-0"
    save_policy(new_policy(), folder / "last")
    for share in video.SHARES:
        save_policy(new_policy(), folder / "snapshots" / str(share))
    return folder


@pytest.mark.parametrize(
    ("failing", "shown"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([2], [0, 1, 3, 4, 5, 6, 7]),
        ([0, 2], [1, 3, 4, 5, 6, 7, 0]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [0]),
    ],
    ids=["all land", "few fail", "many fail", "none lands"],
)
def test_successes_come_first_and_a_failure_is_shown_where_many_fail(run_folder, monkeypatch, failing, shown):
    monkeypatch.setattr(video, "STARTS", 8)
    monkeypatch.setattr(video, "_return", lambda _, seed: 100.0 if seed - video.VIDEO_SEEDS in failing else 200.0)
    with gymnasium.make(ENV, render_mode="rgb_array") as env:
        flights = video._rollout(env, run_folder / "last")
    assert [flight.seed - video.VIDEO_SEEDS for flight in flights] == shown
    assert all(f"{8 - len(failing)} of 8 starts solved" in flight.caption for flight in flights)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")  # imageio's reader leaves ffmpeg's pipes open
def test_the_films_play(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(video, "STARTS", 2)
    out = tmp_path / "films"
    assert cli.main(["video", "grpo", "0", "--work", str(tmp_path), "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [
        str(out / name) for name in ("rollout.mp4", "progression.mp4", "landing.gif")
    ]
    rollout, progression = (imageio.mimread(out / f"{name}.mp4", memtest=False) for name in ("rollout", "progression"))
    assert len(progression) == 6 * len(rollout), "each untrained snapshot flies as the untrained policy does"
    assert rollout[0].shape == (400, 600, 3)
    assert rollout[0][:40, :300].max() > 200, "the caption is white"
    with Image.open(out / "landing.gif") as clip:
        assert clip.size == (300, 200)
        assert clip.n_frames == pytest.approx(len(rollout) / video.CLIP_EVERY, abs=1)


def test_a_run_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["video", "grpo", "0", "--work", str(tmp_path)])
    assert "grpo-0 is no finished run: train it with `run --rows ROW" in capsys.readouterr().err
