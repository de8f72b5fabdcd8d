"""The command line: `tfpipe COMMAND` and `python train.py`."""

from tfpipe.cli.main import main

__all__ = ["main"]
