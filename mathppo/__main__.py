"""Run the command line: `python -m mathppo`."""

import sys

from mathppo.cli import main

if __name__ == "__main__":
    sys.exit(main())
