"""`python -m grpolib` is the command `grpolib`."""

import sys

from grpolib.cli import main

if __name__ == "__main__":
    sys.exit(main())
