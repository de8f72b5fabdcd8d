"""Commands run by the warm server, as if a Python had been started for each.

As a program, `python -S -E -s warm.py WORDS` stands for `python WORDS` to the process that starts it, such as mpirun:
it hands its environment and standard files to the server, passes signals on, and ends with the command's exit code.
"""

import json
import os
import select
import signal
import socket
import sys
import time

ADDRESS = "TFPIPE_TESTS_WARM"
TESTS_PID = "TFPIPE_TESTS_PID"
PIDS = "TFPIPE_TESTS_PIDS"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT)


class Child:
    """A command in a fork of the warm server."""

    def __init__(self, words: list[str], environ: dict[str, str], files: list[int]) -> None:
        """Starts `python WORDS` with the three standard files `files`, in the present folder."""
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(environ[ADDRESS])
        request = {"words": words, "environ": environ, "folder": os.getcwd()}
        contents = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(self.connection, [contents], files)
        self.connection.sendall(contents[sent:])
        self.answers = self.connection.makefile("rb")
        self.pid: int = json.loads(self.answers.readline())["pid"]
        self.returncode: int | None = None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Returns the exit code, negative for a signal's number; None if the command is still running then."""
        if self.returncode is None and select.select([self.connection], [], [], timeout_s)[0]:
            answer = self.answers.readline()
            self.returncode = json.loads(answer)["code"] if answer else -signal.SIGKILL
            self.connection.close()
        return self.returncode


def stand_for(words: list[str]) -> int:
    """Is a command to whoever started this process: its output, its signals and its exit code."""
    child = Child(words, dict(os.environ), [0, 1, 2])
    if PIDS in os.environ:
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
        with open(os.path.join(os.environ[PIDS], f"{rank}.new"), "w") as file:
            file.write(str(child.pid))
        os.rename(file.name, file.name.removesuffix(".new"))
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(child.pid, received))
    code = child.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
        time.sleep(10)
    return code


if __name__ == "__main__":
    sys.exit(stand_for(sys.argv[1:]))
