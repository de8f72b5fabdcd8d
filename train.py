#!/usr/bin/env python
"""The door: python train.py -c config.json, on one process or under mpirun, srun, aprun."""

import sys

from tfpipe.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
