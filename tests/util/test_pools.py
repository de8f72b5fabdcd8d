"""The processes of a pool end with the one that has started it."""

import signal
import sys

from tests.support.commands import finish, start

WORK = """
from time import sleep
from tfpipe.util.pools import parallel
for _ in parallel(sleep, [0, 600, 600], 2):
    print("begun", flush=True)
"""


def test_no_process_outlives_a_killed_parent() -> None:
    process = start(sys.executable, "-c", WORK)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGKILL)
    # The output ends once no process has it open.
    assert finish(process).code == -signal.SIGKILL
