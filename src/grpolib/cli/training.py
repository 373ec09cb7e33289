"""`grpolib train` and `grpolib resume`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import tyro

from grpolib.callbacks import PrintEvaluations
from grpolib.checkpoint import write_json
from grpolib.cli.presets import ANYWHERE, PRESETS, Algorithm
from grpolib.cli.runs import RESULT
from grpolib.cli.settings import Changes, Settings, find_here, read_playable
from grpolib.trainer import Trainer

Workers = int | Literal["auto"]


def train(
    env: Annotated[str, tyro.conf.Positional],
    *,
    algorithm: Algorithm = "critic-free",
    preset: str | None = None,
    total_steps: int | None = None,
    seed: int = 0,
    width: int = 64,
    max_episode_steps: int | None = None,
    workers: Workers = "auto",
    out: Path | None = None,
    changes: Changes = Changes(),  # noqa: B008  tyro reads the default's fields
) -> None:
    """Train a policy and write everything about it into a new folder.

    Args:
        env: A Gymnasium id, for instance CartPole-v1; `module:id` imports the module first.
        algorithm: critic-free and grpo need no critic; ppo and a2c have one.
        preset: An environment whose settings to take; its own by default, where there are any.
        total_steps: Environment steps, at least so many.
        seed: Of the network and the trainer.
        width: Of the network's layers.
        max_episode_steps: Cuts episodes in training, never in evaluation.
        workers: Processes that run episodes; 0 runs them here.
        out: The run's folder; must be new or empty.
        changes: Fields of the recipe.
    """
    find_here(env)
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    chosen = PRESETS.get(preset or env, ANYWHERE)
    settings = Settings(
        env=env,
        algorithm=algorithm,
        total_steps=chosen.total_steps if total_steps is None else total_steps,
        seed=seed,
        width=width,
        max_episode_steps=chosen.max_episode_steps if max_episode_steps is None else max_episode_steps,
        changes=changes,
    )
    folder = out or Path("runs") / f"{env.replace(':', '-')}-{algorithm}-{seed}-{datetime.now():%Y%m%d-%H%M%S}"
    policy = settings.policy()
    trainer = settings.trainer(
        policy, run_folder=folder, workers=workers, compile="auto", callbacks=[PrintEvaluations()]
    )
    settings.save(folder)
    _finish(trainer, settings, folder)


def resume(run: Annotated[Path, tyro.conf.Positional], *, workers: Workers = "auto", env: str | None = None) -> None:
    """Go on with a run that was stopped or killed, with the same bits.

    Args:
        run: Its folder.
        workers: Processes that run episodes; 0 runs them here.
        env: The run's environment again, where it has the form `module:id` and is to be imported.
    """
    settings = read_playable(run, env)
    trainer = settings.resumed(run, settings.policy(), workers=workers, callbacks=[PrintEvaluations()])
    if trainer.num_steps >= settings.total_steps:
        print(f"{run} is complete: {trainer.num_steps:,} of {settings.total_steps:,} steps")
        trainer.close()
        return
    _finish(trainer, settings, run)


def _finish(trainer: Trainer, settings: Settings, folder: Path) -> None:
    try:
        trainer.train(total_steps=settings.total_steps)
        found = trainer.evaluate(env=settings.env)
        write_json(folder / RESULT, {"num_steps": trainer.num_steps, **found.as_row()})
        print(found)
    finally:
        trainer.close()
        print(f"everything is in {folder}; next: grpolib report {folder}")
