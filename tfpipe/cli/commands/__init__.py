"""One module for each command, named after it.

Its docstring is the --help, `add_arguments` adds the arguments, and `run` runs the command. Only `run` imports
TensorFlow, Keras or MPI, so that --help and a mistyped argument are answered at once.
"""
