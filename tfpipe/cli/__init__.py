"""The command line: `tfpipe COMMAND` and `python train.py`.

`program` builds the parser and runs a command, `arguments` holds what several commands share, and `commands` the
commands.
"""

from tfpipe.cli.program import main as main
