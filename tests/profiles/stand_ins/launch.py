"""Runs a script whose further Pythons are another program: python launch.py PYTHON SCRIPT WORDS.

Scripts start themselves and `tfpipe` by sys.executable, which is here a warm Python (tests/support/warm.py): a start
takes 0.1 s instead of 4. Those of multiprocessing are this Python, whose options they have.
"""

import multiprocessing.spawn  # keeps sys.executable as it is now
import os
import runpy
import sys

multiprocessing.spawn.set_executable(sys.executable)
sys.executable, *sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
