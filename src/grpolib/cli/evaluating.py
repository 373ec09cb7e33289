"""`grpolib evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from grpolib.cli.settings import read_policy
from grpolib.evaluation import REPORTED_SEEDS
from grpolib.evaluation import evaluate as evaluation_of


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    which: Literal["best", "last"] = "last",
    episodes: int = 50,
    first_seed: int = REPORTED_SEEDS,
    env: str | None = None,
) -> None:
    """Evaluate a run's policy both ways, by argmax and by sample, from the same starts.

    Args:
        run: Its folder.
        which: The last policy, or the best by the evaluations during training.
        episodes: Episodes each way.
        first_seed: Reset seed of the first one.
        env: The run's environment again, where it has the form `module:id` and is to be imported.
    """
    settings, policy = read_policy(run, which, env)
    print(evaluation_of(policy, settings.env, episodes=episodes, first_seed=first_seed))
