"""`grpolib record`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import tyro

from grpolib.cli.settings import read_policy
from grpolib.evaluation import REPORTED_SEEDS
from grpolib.policies.deployment import Deployed

VIDEO = "video.mp4"


def record(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    which: Literal["best", "last"] = "last",
    episodes: int = 3,
    first_seed: int = REPORTED_SEEDS,
    sampled: Literal["yes", "no"] = "no",
    out: Path | None = None,
    env: str | None = None,
) -> None:
    """Write a video of a run's policy; no display is needed.

    Args:
        run: Its folder.
        which: The last policy, or the best by the evaluations during training.
        episodes: One after the other.
        first_seed: Reset seed of the first one.
        sampled: Sample actions instead of taking the most probable one.
        out: Default: video.mp4 in the run's folder.
        env: The run's environment again, where it has the form `module:id` and is to be imported.
    """
    import imageio

    settings, policy = read_policy(run, which, env)
    path = out or run / VIDEO
    pictured = gymnasium.make(settings.env, render_mode="rgb_array")
    deployed = Deployed(policy, pictured.observation_space, pictured.action_space)
    rate = pictured.metadata.get("render_fps", 30)
    video: Any = imageio.get_writer(path, fps=rate, codec="libx264", macro_block_size=2)
    with video:
        for seed in range(first_seed, first_seed + episodes):
            total = 0.0
            for frame, reward in _frames(pictured, deployed, seed, deterministic=sampled == "no"):
                video.append_data(frame)
                total += reward
            print(f"reset seed {seed}: return {total:.1f}")
    pictured.close()
    print(f"{path}: {episodes} episodes")


def _frames(
    env: gymnasium.Env[Any, Any], policy: Deployed, seed: int, *, deterministic: bool
) -> Iterator[tuple[Any, float]]:
    """Every picture of an episode, and the reward that came with it."""
    observation, _ = env.reset(seed=seed)
    yield env.render(), 0.0
    ended = False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy(observation, deterministic=deterministic))
        ended = terminated or truncated
        yield env.render(), float(reward)
