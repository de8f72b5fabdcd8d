"""The workers of `data.service`: processes started by this one, or elsewhere by `tfpipe serve`."""

import atexit
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tfpipe.errors import TfpipeError, counted
from tfpipe.util.forks import per_process, unless_forked

# Seconds for a worker to start, which includes loading TensorFlow from a file system that may be slow.
START_S = 300.0
CONNECT_S = 3.0
# Seconds to wait until any of the remote workers answers (again).
PATIENCE_S = 45.0
PAUSE_S = 1.0
# Signals that end a training often go to all processes of a job; a worker, which must outlive the training's last step,
# ignores them. A shell sees to that, since they may come while Python starts.
SHELTERED = ("/bin/sh", "-c", 'trap "" HUP INT TERM USR1 USR2; exec "$@"', "sh")


def open_workers(service: int | str | list[str]) -> "Workers":
    """Starts the workers of `data.service`, or takes the addresses of running ones."""
    if isinstance(service, int):
        return local_workers(service)
    return Workers([service] if isinstance(service, str) else service, PATIENCE_S)


@per_process
def local_workers(count: int) -> "LocalWorkers":
    """Starts `count` workers of this process; the next call, e.g. for the test pass, returns the same ones."""
    workers = LocalWorkers(count)
    atexit.register(unless_forked(workers.close))
    return workers


class Workers:
    """Workers at known addresses. The next one that answers replaces one that does not."""

    def __init__(self, addresses: Sequence[str], patience_s: float) -> None:
        self._addresses, self._patience_s = list(addresses), patience_s
        self._given_up: set[str] = set()

    @property
    def count(self) -> int:
        """Number of workers as configured, dead ones included."""
        return len(self._addresses)

    def find(self, number: int) -> str:
        """Returns the address of a live worker that makes the blocks of worker `number`.

        Raises TfpipeError if no worker is alive.
        """
        candidates = self._addresses[number:] + self._addresses[:number]
        end_s = time.monotonic() + self._patience_s
        while True:
            # Workers that accepted connections but stalled, e.g. stopped processes, are the last resort.
            for address in sorted(candidates, key=self._given_up.__contains__):
                if self.lives(address):
                    return address
            if time.monotonic() > end_s:
                raise TfpipeError(
                    f"data.service: none of {', '.join(self._addresses)} has answered for "
                    f"{counted(self._patience_s, 'second')}; start them with `tfpipe serve worker`, then --resume"
                )
            time.sleep(PAUSE_S)

    def lives(self, address: str) -> bool:
        """Returns whether the worker at `address` accepts connections."""
        host, port = address.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=CONNECT_S):
                return True
        except OSError:
            return False

    def give_up(self, address: str) -> None:
        """Marks the worker at `address`, which has stalled, as dead."""
        self._given_up.add(address)


class LocalWorkers(Workers):
    """Worker processes started by this one. A dead one is restarted when its next block is requested.

    They end when this process ends, even if it is killed: each checks whether its parent still runs.
    """

    def __init__(self, count: int) -> None:
        super().__init__([""] * count, PATIENCE_S)
        self._lock, self._closed = threading.Lock(), False
        self._processes = [_start() for _ in range(count)]

    def find(self, number: int) -> str:
        with self._lock:
            if self._closed:
                raise TfpipeError("data.service: this process is ending, and its workers have ended")
            if self._processes[number].poll() is not None and self._addresses[number]:
                self._processes[number], self._addresses[number] = _start(), ""
            if not self._addresses[number]:
                self._addresses[number] = _address(self._processes[number])
            return self._addresses[number]

    def give_up(self, address: str) -> None:
        with self._lock:
            if address in self._addresses:
                process = self._processes[self._addresses.index(address)]
                process.kill()
                process.wait()

    def close(self) -> None:
        """Kills all workers and waits until they are gone."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
            for process in self._processes:
                with process:  # closes its pipe
                    process.wait()


def _start() -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[3])  # the folder that holds the package
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # Hides the GPUs, whose memory the worker would take from the training.
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    serve = [sys.executable, "-m", "tfpipe", "serve", "worker"]
    command = [*SHELTERED, *serve, "--port", "0", "--host", "localhost", "--parent", str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)


def _address(process: subprocess.Popen[str]) -> str:
    """Waits until a worker prints its address, and returns it.

    Raises TfpipeError if the worker ends before that, or takes longer than START_S.
    """
    assert process.stdout is not None, "a pipe"
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline().strip() if ready else ""
    if not line:
        process.kill()
        raise TfpipeError(
            f"data.service: a worker process did not start (exit code {process.wait()}); its messages are above"
        )
    return line.split()[-1]
