"""The command line: ``python -m autoinv COMMAND``."""

import sys

from autoinv.cli.main import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m autoinv"))
