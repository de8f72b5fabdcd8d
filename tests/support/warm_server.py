"""A process that has imported TensorFlow and Keras, and forks for each command: a start takes 0.1 s instead of 4.

`python warm_server.py SOCKET PID` serves until process PID, the tests', has ended. A forked child gets the command's
words, environment, folder and standard files, so it runs as `python WORDS` does, except for what TensorFlow writes to
stderr and which environment variables it reads while it is imported. tfpipe, whose import changes nothing, is imported
here as well: that takes 0.7 s.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import types
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

import numpy as np
from namespaces import elsewhere, enter
from warm import PIDS

HERE = os.path.dirname(os.path.realpath(__file__))
# Everything that a command takes more than 50 ms to import, without what starts threads or opens connections.
MODULES = (
    *("tensorflow", "keras", "numpy", "PIL.Image", "lxml.etree", "pyarrow.parquet", "pydantic"),
    *("tqdm", "urllib.request", "tensorflow.tsl.profiler.protobuf.xplane_pb2", "horovod.tensorflow"),
    *("tfpipe.cli", "tfpipe.config", "tfpipe.training.loop", "tfpipe.prepare.pack", "tfpipe.tools.report"),
)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)


class Command(NamedTuple):
    """A command and its three standard files."""

    words: list[str]
    environ: dict[str, str]
    folder: str
    files: list[int]


class Server:
    """Takes commands on a socket, forks for each, and tells the client the child's process number and exit code."""

    def __init__(self, address: str, tests_pid: int) -> None:
        # CPU times of ended children, with the test that asked for each: durations.py reads them.
        self.times = open(f"{address}.cpu", "a", buffering=1)
        self.names: dict[int, str] = {}
        self.listener = socket.socket(socket.AF_UNIX)
        # The address appears once the server listens there.
        self.listener.bind(f"{address}.new")
        self.listener.listen(64)
        os.rename(f"{address}.new", address)
        self.tests = os.pidfd_open(tests_pid)
        self.children: dict[int, socket.socket] = {}
        self.ended, self.wakeup = os.pipe()
        os.set_blocking(self.wakeup, False)
        signal.set_wakeup_fd(self.wakeup)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector = selectors.DefaultSelector()
        for file in (self.listener, self.tests, self.ended):
            self.selector.register(file, selectors.EVENT_READ)

    def serve(self) -> Command | None:
        """Returns the command in the child that is to run it, and None in the server once the tests have ended."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == self.tests:
                    for pid in self.children:
                        os.kill(pid, signal.SIGKILL)
                    return None
                if key.fileobj == self.ended:
                    os.read(self.ended, 4096)
                    self.report()
                elif key.fileobj is not self.listener:
                    self.kill(key.data)
                elif (command := self.fork()) is not None:
                    return command

    def fork(self) -> Command | None:
        """Forks for the next command; returns it in the child, None in the server."""
        connection, _ = self.listener.accept()
        try:
            command = receive(connection)
        except (OSError, ValueError):
            connection.close()  # the process that asked has ended
            return None
        asking = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        on_a_host = elsewhere(asking)
        pid = os.fork()
        if pid == 0:
            if on_a_host:
                enter(asking)
                tell(connection, {"pid": os.getpid()})  # by which processes there know it
            self.leave(connection)
            return command
        for file in command.files:
            os.close(file)
        self.children[pid] = connection
        self.names[pid] = command.environ.get("PYTEST_CURRENT_TEST", "")
        self.selector.register(connection, selectors.EVENT_READ, pid)
        if not on_a_host:
            tell(connection, {"pid": pid})
        return None

    def leave(self, connection: socket.socket) -> None:
        """Gives up, in a child, everything that belongs to the server."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.selector.close()
        self.times.close()
        for file in (self.tests, self.ended, self.wakeup):
            os.close(file)
        for held in (self.listener, connection, *self.children.values()):
            held.close()

    def report(self) -> None:
        """Tells the exit codes of the children that have ended; takes note also of the killed ones, lest they stay."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.times.write(f"{used.ru_utime + used.ru_stime:.3f}\t{self.names.pop(pid)}\n")
            if (connection := self.children.pop(pid, None)) is not None:
                self.selector.unregister(connection)
                tell(connection, {"code": os.waitstatus_to_exitcode(status)})
                connection.close()

    def kill(self, pid: int) -> None:
        """Kills a child after the process that asked for it, which says nothing more unless it ends."""
        connection = self.children.pop(pid, None)
        if connection is None:
            return  # the child has ended at the same time
        self.selector.unregister(connection)
        connection.close()
        os.kill(pid, signal.SIGKILL)


def receive(connection: socket.socket) -> Command:
    """Reads a command from a client.

    Raises:
        ValueError: the other side has ended before the command was complete.
    """
    contents, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    try:
        while not contents.endswith(b"\n"):
            more = connection.recv(1 << 16)
            if not more:
                raise ValueError(f"a command that is cut off: {contents!r}")
            contents += more
        return Command(**json.loads(contents), files=files)
    except (OSError, ValueError):
        for file in files:  # their reader waits for their end
            os.close(file)
        raise


def tell(connection: socket.socket, message: dict[str, int]) -> None:
    """Sends a line if a client can still read it."""
    with suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def become(command: Command) -> None:
    """Makes this new child what the command's process is once Python has started."""
    for number, file in enumerate(command.files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(command.environ)
    os.chdir(command.folder)
    np.random.seed()  # each Python that starts has other numbers
    if PIDS in os.environ:
        # Before the command does anything by which a test could know that it runs.
        number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK", "0")  # mpirun's or torchrun's
        rank = os.path.join(os.environ[PIDS], number)
        with open(f"{rank}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{rank}.new", rank)


def run(words: list[str]) -> None:
    """Runs `python WORDS`: -c CODE, -m MODULE or a script."""
    option, rest = words[0], words[1:]
    first = {"-c": "", "-m": os.getcwd()}.get(option, os.path.dirname(os.path.realpath(option)))
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *added, *(path for path in sys.path if path != HERE)]
    if option == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif option == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(option, run_name="__main__")


if __name__ == "__main__":
    # TensorFlow reads these while it is imported; pyarrow's allocator the last: forks may inherit its thread's lock.
    sys.path.append(os.path.dirname(os.path.dirname(HERE)))
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "1"}
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    server = Server(sys.argv[1], int(sys.argv[2]))
    for name in MODULES:
        with suppress(ImportError):  # a command that needs it says so itself
            import_module(name)
    gc.freeze()  # a child's collections would otherwise copy every page
    asked = server.serve()
    if asked is not None:
        become(asked)
        del server
        run(asked.words)
