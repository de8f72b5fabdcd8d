"""The command line: `tfpipe COMMAND` and `python train.py`."""

from tfpipe.cli.program import main as main
