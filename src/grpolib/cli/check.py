"""`grpolib check-env`."""

from typing import Annotated

import tyro

from grpolib.cli.settings import find_here
from grpolib.sampling import check_group_env


def check_env(env: Annotated[str, tyro.conf.Positional]) -> None:
    """Say whether an environment suits a group baseline, and why.

    Args:
        env: A Gymnasium id; `module:id` imports the module first.
    """
    find_here(env)
    print(check_group_env(env))
