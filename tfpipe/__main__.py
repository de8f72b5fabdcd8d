"""python -m tfpipe: the command line."""

import sys

from tfpipe.cli import main

if __name__ == "__main__":
    sys.exit(main())
