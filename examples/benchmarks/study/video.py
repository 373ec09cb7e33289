"""Films of a run: its final policy from many starts, one start through its snapshots, and a short clip."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import imageio
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from grpolib import load_policy
from grpolib.policies.deployment import Deployed
from study.rows import ENV, new_policy
from study.running import SHARES

VIDEO_SEEDS, STARTS = 3_000_000_000, 24
"""Reset seeds of the films, used for nothing else."""
SOLVED = 200.0
FAILURES_SHOWN_FROM = 0.15
"""Share of failures above which the first one is shown: a film of successes alone would mislead then."""
CLIP_EVERY, CLIP_SIZE, CLIP_COLOURS = 4, (300, 200), 48


class Flight(NamedTuple):
    """A start, what is flown from it, and what its frames say."""

    policy: Deployed
    seed: int
    caption: str


def films(run: Path, out: Path) -> Sequence[Path]:
    """Write rollout.mp4, progression.mp4 and landing.gif, by argmax; no display is needed.

    Args:
        run: Folder of a finished run, with `last` and `snapshots`.
        out: Folder of the films.

    Raises:
        ValueError: `run` is no finished run.
    """
    if not (run / "last").is_dir():
        raise ValueError(f"{run} is no finished run: train it with `run --rows ROW --seeds SEED` and the same --work")
    out.mkdir(parents=True, exist_ok=True)
    with gymnasium.make(ENV, render_mode="rgb_array") as env:
        rollout = _rollout(env, run / "last")
        return [
            _film(out / "rollout.mp4", env, rollout),
            _film(out / "progression.mp4", env, _progression(env, run / "snapshots")),
            _clip(out / "landing.gif", env, rollout[0]),
        ]


def _rollout(env: gymnasium.Env[Any, Any], policy_folder: Path) -> list[Flight]:
    """Successes first, then the first failure where failures are many; every frame says how many of all succeed."""
    policy = _deployed(env, policy_folder)
    returns = {seed: _return(policy, seed) for seed in range(VIDEO_SEEDS, VIDEO_SEEDS + STARTS)}
    successes = [seed for seed, total in returns.items() if total >= SOLVED]
    failures = [seed for seed in returns if seed not in successes]
    shown = successes + (failures[:1] if len(failures) > FAILURES_SHOWN_FROM * STARTS or not successes else [])
    rate = f"{len(successes)} of {STARTS} starts solved"
    return [Flight(policy, seed, f"{rate}; this one {returns[seed]:.0f}") for seed in shown]


def _progression(env: gymnasium.Env[Any, Any], snapshots: Path) -> list[Flight]:
    """The first start, flown by each snapshot."""
    policies = {share: _deployed(env, snapshots / str(share)) for share in SHARES}
    return [
        Flight(policy, VIDEO_SEEDS, f"after {share:.1%} of training: {_return(policy, VIDEO_SEEDS):.0f}")
        for share, policy in policies.items()
    ]


def _deployed(env: gymnasium.Env[Any, Any], folder: Path) -> Deployed:
    policy = new_policy()
    load_policy(policy, folder)
    return Deployed(policy, env.observation_space, env.action_space)


def _return(policy: Deployed, seed: int) -> float:
    with gymnasium.make(ENV) as env:
        return sum(reward for reward in _steps(env, policy, seed))


def _steps(env: gymnasium.Env[Any, Any], policy: Deployed, seed: int) -> Iterator[float]:
    """Fly an episode; its rewards, the first of them 0 for the reset."""
    observation, _ = env.reset(seed=seed)
    yield 0.0
    ended = False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy(observation, deterministic=True))
        ended = terminated or truncated
        yield float(reward)


def _frames(env: gymnasium.Env[Any, Any], flight: Flight) -> Iterator[Image.Image]:
    for _ in _steps(env, flight.policy, flight.seed):
        frame: Any = env.render()
        picture = Image.fromarray(frame)
        ImageDraw.Draw(picture).text((12, 10), flight.caption, font=ImageFont.load_default(18), fill="white")
        yield picture


def _film(path: Path, env: gymnasium.Env[Any, Any], flights: Sequence[Flight]) -> Path:
    writer: Any = imageio.get_writer(path, fps=env.metadata["render_fps"], codec="libx264", macro_block_size=2)
    with writer:
        for flight in flights:
            for picture in _frames(env, flight):
                writer.append_data(np.asarray(picture))
    return path


def _clip(path: Path, env: gymnasium.Env[Any, Any], flight: Flight) -> Path:
    """One flight, small enough to stand in a page: few frames, small ones, few colours."""
    small = [
        picture.resize(CLIP_SIZE).quantize(CLIP_COLOURS, dither=Image.Dither.NONE)
        for number, picture in enumerate(_frames(env, flight))
        if number % CLIP_EVERY == 0
    ]
    milliseconds = 1000 * CLIP_EVERY // int(env.metadata["render_fps"])
    small[0].save(path, save_all=True, append_images=small[1:], duration=milliseconds, loop=0, optimize=True)
    return path
