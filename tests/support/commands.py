"""Commands that the tests run, each in a process of its own, as a user does.

Most are `python train.py` and `python -m tfpipe`, which the warm server starts 4 s faster than Python does. A test
that is about the start itself passes **COLD.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.faults import build_library
from tests.support.warm import ADDRESS, PIDS, TESTS_PID

ROOT = Path(__file__).resolve().parents[2]
# In the place of sys.executable: a Python that has imported TensorFlow and Keras already.
WARM = (sys.executable, "-S", "-E", "-s", str(ROOT / "tests/support/warm.py"))
COLD = {"TFPIPE_TESTS_COLD": "1"}
LIMIT_S = 540  # of a command: a little less than pytest's of a test, in pyproject.toml


class Finished(NamedTuple):
    code: int
    out: str
    err: str


# More ranks than cores, and a container's root, are fine for tests. In the environment, since MPICH's mpirun refuses
# Open MPI's flags.
MPI_ENVIRON = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def start(*command: str | Path, **environ: str) -> subprocess.Popen[str]:
    """Starts a command from an unrelated directory's point of view, as a user would."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    words = [str(part) for part in command]
    if not COLD.keys() & env.keys():
        words = list(_warmed(words))
        if WARM[-1] in words:
            ensure_server()
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def _warmed(words: Sequence[str]) -> Iterator[str]:
    """Replaces the Python of each `python train.py` and `python -m tfpipe` by a warm one."""
    for number, word in enumerate(words):
        after = words[number + 1 : number + 3]
        is_ours = after == ["-m", "tfpipe"] or after[:1] == [str(ROOT / "train.py")]
        yield from WARM if word == sys.executable and is_ours else [word]


def announce_server() -> None:
    """Names the socket of a warm server that ends with this process, unless another process has named one."""
    if ADDRESS not in os.environ:
        # Not below pytest's own folders: a socket's path has 107 characters at most.
        os.environ[ADDRESS] = f"{tempfile.mkdtemp(prefix='tfpipe-')}/warm"
        os.environ[TESTS_PID] = str(os.getpid())


def forget_server() -> None:
    """Removes the folder of the socket that this process has named."""
    if os.environ.get(TESTS_PID) == str(os.getpid()):
        shutil.rmtree(Path(os.environ.pop(ADDRESS)).parent, ignore_errors=True)


def ensure_server() -> None:
    """Starts the warm server unless one of these tests' processes has done so; it ends with the tests."""
    address = os.environ[ADDRESS]
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(address):
            return
        command = [sys.executable, str(ROOT / "tests/support/warm_server.py"), address, os.environ[TESTS_PID]]
        # In a session of its own: Ctrl-C at the tests is not for it.
        with open(f"{address}.log", "w") as log:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # Inert without the variable of `faulty`.
            quiet["env"] = {**os.environ, "LD_PRELOAD": build_library(Path(address).parent)}
            server = subprocess.Popen(command, **quiet, start_new_session=True)
        while not os.path.exists(address):
            assert server.poll() is None, Path(f"{address}.log").read_text()
            time.sleep(0.02)


def finish(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> Finished:
    """Waits for a command to end, and ends one that hangs, to show what it has said."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still running after {limit_s} s: {process.args}\n{end(process)}") from None
    return Finished(process.returncode, out, err)


def end(process: subprocess.Popen[str]) -> str:
    """Ends a command that a test has given up, mpirun with its ranks; returns what it has said."""
    said = ""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        try:
            said = "\n".join(process.communicate(timeout=10))
            break
        except subprocess.TimeoutExpired as running:
            said = f"{running.stdout!r}\n{running.stderr!r}"
    return said


def run(*command: str | Path, **environ: str) -> Finished:
    return finish(start(*command, **environ))


def run_train(*args: str | Path, **environ: str) -> Finished:
    """Runs `python train.py ARGS` in one process."""
    return run(sys.executable, ROOT / "train.py", *args, **environ)


def mpirun() -> str:
    """Returns the path of mpirun, the one next to Python if there is one."""
    path = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert path, "mpirun is not on PATH; make test installs it"
    return path


def start_ranks(size: int, *command: str | Path, **environ: str) -> subprocess.Popen[str]:
    """Starts `command` on `size` ranks under mpirun."""
    return start(mpirun(), "-n", str(size), *command, **MPI_ENVIRON, **environ)


def run_ranks(size: int, *command: str | Path, **environ: str) -> Finished:
    """Runs `command` on `size` ranks under mpirun to its end."""
    return finish(start_ranks(size, *command, **environ))


class Processes(NamedTuple):
    """The processes of the ranks of a warm command, by the files that each writes its process number to."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which to start the command; forgets the ranks of an earlier one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return {PIDS: str(self.folder)}

    def pids(self) -> dict[int, int]:
        """Process numbers by rank. A rank is among them before it does anything else."""
        started = sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())
        return {rank: int((self.folder / str(rank)).read_text()) for rank in started}

    def running(self) -> list[int]:
        """Process numbers of the ranks that have not ended."""
        return [pid for pid in self.pids().values() if is_running(pid)]

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        """Sends a signal to some ranks, or to all."""
        pids = self.pids()
        for rank in ranks or pids:
            os.kill(pids[rank], number)


def is_running(pid: int) -> bool:
    """Returns whether a process has not ended; one that has, and that no process has waited for yet, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
