"""Commands run by the warm server, as if a Python had been started for each.

The program `python -S -E -s warm.py WORDS` stands for `python WORDS` to the process that starts it, such as mpirun:
it hands its environment and standard files to the server, passes signals on, and ends with the command's exit code.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

ADDRESS = "TFPIPE_TESTS_WARM"
TESTS_PID = "TFPIPE_TESTS_PID"
PIDS = "TFPIPE_TESTS_PIDS"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT)


class Child:
    """A command in a fork of the warm server."""

    def __init__(self, words: list[str], environ: dict[str, str], files: list[int]) -> None:
        """Starts `python WORDS` with the three standard files `files`, in the present folder."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(environ[ADDRESS])
        request = {"words": words, "environ": environ, "folder": os.getcwd()}
        contents = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [contents], files)
        connection.sendall(contents[sent:])
        self.answers = connection.makefile("rb")  # keeps the connection open, by which the server knows of this process
        self.pid = self._answer()["pid"]

    def signal(self, number: int) -> None:
        """Sends a signal to the command, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Returns the exit code, negative for a signal's number."""
        return self._answer()["code"]

    def _answer(self) -> dict[str, int]:
        if answer := self.answers.readline():
            return json.loads(answer)
        raise RuntimeError(f"the warm server has ended; it may have said why in {os.environ[ADDRESS]}.log")


def stand_for(words: list[str]) -> int:
    """Is a command to the parent of this process: its output, its signals and its exit code."""
    child = Child(words, dict(os.environ), [0, 1, 2])
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: child.signal(received))
    code = child.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
        time.sleep(10)
    return code


if __name__ == "__main__":
    sys.exit(stand_for(sys.argv[1:]))
