"""The servers of `data.service`: started beside this process, or somewhere else by `tfpipe serve`."""

import atexit
import functools
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tfpipe
from tfpipe.config import Service
from tfpipe.errors import TfpipeError

# To load TensorFlow, from a slow file system at that.
START_S = 300.0
CONNECT_S = 3.0
# How long one waits for any of the servers that run elsewhere to come (back).
PATIENCE_S = 45.0
PAUSE_S = 1.0


class Servers(Protocol):
    """What a feed needs to know of them."""

    @property
    def count(self) -> int:
        """How many there are meant to be."""

    def find(self, number: int) -> str:
        """The address of a living server to take the blocks of server `number` from.

        Raises:
            TfpipeError: there is none.
        """

    def lives(self, address: str) -> bool:
        """Whether the server there is still there."""

    def give_up(self, address: str) -> None:
        """Takes the server there, which no longer does its work, for dead."""


def open_servers(service: Service) -> Servers:
    """Those that `data.service` asks for."""
    if service.workers is not None:
        return beside(service.workers)
    address = service.address
    assert address is not None, "one of the two is given"
    return Elsewhere([address] if isinstance(address, str) else address, PATIENCE_S)


@functools.cache
def beside(count: int) -> "Beside":
    """`count` servers of this process; those of training serve the test pass as well."""
    servers = Beside(count)
    atexit.register(servers.close)
    return servers


class Beside:
    """Server processes of this one's own. One that has died is started anew when its next block is wanted.

    They end when this process does, however that happens: each looks whether its parent is still there.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._processes = [_start() for _ in range(count)]
        self._addresses = [""] * count

    @property
    def count(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Of the processes, by number."""
        return [process.pid for process in self._processes]

    def find(self, number: int) -> str:
        with self._lock:
            if self._closed:
                raise TfpipeError("data.service: this process is ending, and so have its servers")
            if self._processes[number].poll() is not None and self._addresses[number]:
                self._processes[number], self._addresses[number] = _start(), ""
            if not self._addresses[number]:
                self._addresses[number] = _address(self._processes[number])
            return self._addresses[number]

    def lives(self, address: str) -> bool:
        with self._lock:
            return address in self._addresses and self._processes[self._addresses.index(address)].poll() is None

    def give_up(self, address: str) -> None:
        with self._lock:
            if address in self._addresses:
                process = self._processes[self._addresses.index(address)]
                process.kill()
                process.wait()

    def close(self) -> None:
        """Ends them."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
            for process in self._processes:
                with process:  # closes its pipe
                    process.wait()


class Elsewhere:
    """Servers at known addresses. In place of one that does not answer comes the next that does."""

    def __init__(self, addresses: Sequence[str], patience_s: float) -> None:
        self._addresses, self._patience_s = list(addresses), patience_s
        self._given_up: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._addresses)

    def find(self, number: int) -> str:
        candidates = self._addresses[number:] + self._addresses[:number]
        end_s = time.monotonic() + self._patience_s
        while True:
            # Those that answered but did not work, as one does that was stopped, only if there is no other.
            for address in sorted(candidates, key=self._given_up.__contains__):
                if self.lives(address):
                    return address
            if time.monotonic() > end_s:
                raise TfpipeError(
                    f"data.service: none of {', '.join(self._addresses)} has answered for {self._patience_s:g} "
                    "seconds; start them with `tfpipe serve worker`, then go on with --resume"
                )
            time.sleep(PAUSE_S)

    def lives(self, address: str) -> bool:
        host, port = address.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=CONNECT_S):
                return True
        except OSError:
            return False

    def give_up(self, address: str) -> None:
        self._given_up.add(address)


def _start() -> subprocess.Popen[str]:
    root = str(Path(tfpipe.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # Without the GPUs, whose memory it would take from the training.
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    serve = [sys.executable, "-m", "tfpipe", "serve", "worker"]
    command = [*serve, "--port", "0", "--host", "localhost", "--parent", str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)


def _address(process: subprocess.Popen[str]) -> str:
    """Where it serves, once it says so.

    Raises:
        TfpipeError: it ends before, or takes too long.
    """
    assert process.stdout is not None, "a pipe"
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline().strip() if ready else ""
    if not line:
        process.kill()
        raise TfpipeError(
            f"data.service: a worker process did not start (exit code {process.wait()}); what it said is above"
        )
    return line.split()[-1]
