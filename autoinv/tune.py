"""The command line: ``python -m autoinv.tune COMMAND``."""

import sys

from autoinv.cli.main import main as main

if __name__ == "__main__":
    sys.exit(main())
