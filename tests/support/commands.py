"""Command lines the tests run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Finished(NamedTuple):
    """A command that has ended."""

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
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(process: subprocess.Popen[str], timeout_s: float = 300) -> Finished:
    """Waits for it to end, and ends it if that takes too long."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Finished(process.returncode, out, err)


def run(*command: str | Path, **environ: str) -> Finished:
    """Runs a command to its end."""
    return finish(start(*command, **environ))


def run_train(*args: str | Path, **environ: str) -> Finished:
    """python train.py ARGS, in one process."""
    return run(sys.executable, ROOT / "train.py", *args, **environ)


def start_ranks(size: int, *command: str | Path, **environ: str) -> subprocess.Popen[str]:
    """`command` on `size` ranks under mpirun."""
    beside = str(Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ["PATH"]]))
    assert mpirun, "mpirun is not on PATH; make test installs it"
    return start(mpirun, "-n", str(size), *command, **MPI_ENVIRON, **environ)


def run_ranks(size: int, *command: str | Path, **environ: str) -> Finished:
    """The same, to its end."""
    return finish(start_ranks(size, *command, **environ))
