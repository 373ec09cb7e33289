"""The command `grpolib`: train, evaluate and look at runs without a script. Needs the extra `cli`."""

import logging
import sys
from collections.abc import Sequence

from gymnasium.error import Error
from tqdm import tqdm


class _AboveTheBar(logging.Handler):
    """The library's messages, which are silent in a script unless it asks for them."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code: 0, 2 for what was asked wrongly, 130 after Ctrl-C."""
    try:
        from grpolib.cli.verbs import run
    except ImportError as error:
        print(f"grpolib needs {error.name}: pip install 'grpolib[cli]'", file=sys.stderr)
        return 2
    messages = logging.getLogger("grpolib")
    messages.setLevel(logging.INFO)
    messages.addHandler(handler := _AboveTheBar())
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("interrupted: everything up to the last complete iteration is written", file=sys.stderr)
        return 130
    except ImportError as error:
        print(
            f"this needs {error.name}: pip install 'grpolib[cli]'" if error.name else f"grpolib: {error}",
            file=sys.stderr,
        )
        return 2
    except (ValueError, OSError, Error) as error:
        print(f"grpolib: {error}", file=sys.stderr)
        return 2
    finally:
        messages.removeHandler(handler)
    return 0
