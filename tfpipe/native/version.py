"""Constants of setup.py and tfpipe.native; setup.py runs this file where neither NumPy nor tfpipe is installed."""

# Of what Python calls in both libraries, in which setup.py compiles it: another one is refused.
VERSION = 25
REMEDY = "install a wheel of tfpipe, or install it again with a C compiler (cc) on PATH"
