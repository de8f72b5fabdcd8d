"""One module for each command, named after it.

`tfpipe --help` shows the first line of its docstring, `tfpipe COMMAND --help` the whole docstring. `add_arguments` adds
the arguments to a parser, and `run` runs the command with the parsed ones; it raises a TfpipeError, which names the
exit code, if the command has failed. Only `run` imports TensorFlow, Keras or MPI, so that --help and a mistyped
argument are answered at once.
"""
