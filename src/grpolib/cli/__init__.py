"""The command `grpolib`: train, evaluate and look at runs without a script. Needs the extra `cli`."""

import sys
from collections.abc import Sequence

from gymnasium.error import Error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code: 0, 2 for what was asked wrongly, 130 after Ctrl-C."""
    try:
        from grpolib.cli.verbs import run
    except ImportError as error:
        print(f"grpolib needs {error.name}: pip install 'grpolib[cli]'", file=sys.stderr)
        return 2
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("interrupted: everything up to the last complete iteration is written", file=sys.stderr)
        return 130
    except ImportError as error:
        print(f"this needs {error.name or error}: pip install 'grpolib[cli]'", file=sys.stderr)
        return 2
    except (ValueError, OSError, Error) as error:
        print(f"grpolib: {error}", file=sys.stderr)
        return 2
    return 0
