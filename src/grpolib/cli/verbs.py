"""The verbs of the command, one function each."""

from collections.abc import Callable, Sequence
from typing import Any

import tyro

from grpolib.cli.check import check_env
from grpolib.cli.evaluating import evaluate
from grpolib.cli.plotting import plot
from grpolib.cli.recording import record
from grpolib.cli.reporting import report
from grpolib.cli.training import resume, train
from grpolib.cli.versus import compare

VERBS: dict[str, Callable[..., Any]] = {
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "record": record,
    "plot": plot,
    "compare": compare,
    "report": report,
    "check-env": check_env,
}


def run(arguments: Sequence[str] | None) -> None:
    """Run the verb that the arguments name."""
    tyro.extras.subcommand_cli_from_dict(
        VERBS,
        prog="grpolib",
        description="Group-relative policy optimisation: train a policy, and look at what came of it.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff),
    )
