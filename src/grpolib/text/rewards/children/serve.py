"""Answers questions by a script's `judge`, one line of JSON each: `python serve.py SCRIPT SETTINGS`.

The first line out says that it is ready; what raises is answered with null.
"""

import json
import os
import runpy
import sys


def main(script: str, settings: str) -> None:
    """Ends with its input."""
    answers = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # what a judge prints is no answer
    judge = runpy.run_path(script)["make_judge"](**json.loads(settings))
    os.write(answers, b"null\n")
    os.dup2(quiet, 2)
    for line in sys.stdin:
        try:
            answer = json.dumps(judge(**json.loads(line)))
        except BaseException:
            answer = "null"
        os.write(answers, answer.encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
