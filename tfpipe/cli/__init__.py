"""The command line: `tfpipe COMMAND` and `python train.py`.

`program` builds the parser and runs a command; `arguments` holds what several commands share. Each other module is a
command, named after it: its docstring is the --help, `add_arguments` adds the arguments, and `run` runs the command.
Only `run` imports TensorFlow, Keras or MPI, so that --help and a mistyped argument are answered at once.
"""

from tfpipe.cli.program import main

__all__ = ["main"]
