"""The directory of a run: a new one, or that of an earlier run to continue, which is locked; without TensorFlow."""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.training.checkpointing.checkpoints import FOLDER, checkpoint_paths
from tfpipe.training.monitor.metrics import METRICS
from tfpipe.util.atomic_write import PARTIAL, remove_leftovers
from tfpipe.util.locks import locked

LOCK = "lock"
# Seconds to wait for a rank 0 on a host that the run has lost: after 90 s without an answer it ends (monitor.peers),
# and the job scripts resume without it after 60.
PATIENCE_S = 60.0

Resume = Literal["must", "auto"]
"""How a run is continued: one that must have a checkpoint, or one that may have none, and then begins."""


def check_run_dir(logdir: Path | None, resume: Resume | None) -> None:
    """Raises ConfigError if `logdir` holds another run, or has no checkpoint to resume."""
    if resume is not None and logdir is None:
        raise ConfigError("--resume needs --logdir, the directory of the run to continue")
    if logdir is None:
        return
    checkpoints = checkpoint_paths(logdir)
    if resume == "must" and not checkpoints:
        raise ConfigError(f"no checkpoint in {logdir / FOLDER} to resume; --resume auto would start a new run")
    if resume is None and (checkpoints or (logdir / METRICS).exists()):
        raise ConfigError(f"{logdir} holds an earlier run; continue it with --resume, or give another --logdir")


def choose_run_dir(logdir: Path | None, config_path: Path, world: World, resume: Resume | None = None) -> Path:
    """Creates and returns `logdir`, or a new runs/NAME-TIME named after the config; the same on every rank.

    Raises ConfigError as check_run_dir does, and if the directory cannot be written.
    """

    def choose() -> Path:
        check_run_dir(logdir, resume)
        run_dir = logdir or Path("runs") / f"{config_path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            if logdir is None:
                return _new_folder(run_dir)
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {run_dir}: {error.strerror}") from error
        return run_dir

    return world.from_rank0(choose)


def _new_folder(path: Path) -> Path:
    """Makes `path`, or PATH-2, PATH-3, ... in its place if another run began in the same second; raises OSError."""
    made, number = path, 1
    while True:
        with suppress(FileExistsError):
            made.mkdir(parents=True)
            return made
        number += 1
        made = path.with_name(f"{path.name}-{number}")


@contextmanager
def run_lock(run_dir: Path, world: World) -> Iterator[None]:
    """Locks `run_dir` against other runs, and removes the unfinished files of a killed run. Every rank must call.

    A crash releases the lock. Raises ConfigError if another run holds the lock, or the directory cannot be written.
    """
    with ExitStack() as locks:

        def take() -> None:
            try:
                locks.enter_context(locked(run_dir / LOCK, "training in this directory", PATIENCE_S))
                for folder in (run_dir, run_dir / FOLDER):
                    remove_leftovers(folder.glob(f".*{PARTIAL}"))
            except OSError as error:
                raise ConfigError(f"cannot write to the run directory {run_dir}: {error.strerror}") from error

        world.from_rank0(take)
        yield


def check_room(run_dir: Path, needed_bytes: int, world: World) -> None:
    """Checks, before training starts, that checkpoints can be written. Every rank must call.

    A checkpoint has `needed_bytes`. Raises ConfigError if the folder cannot be written, or has no space for two.
    """

    def check() -> None:
        folder = run_dir / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable").write_text("")
            (folder / ".writable").unlink()
        except OSError as error:
            raise ConfigError(f"cannot write checkpoints to {folder}: {error.strerror}") from error
        free = shutil.disk_usage(folder).free
        if free < 2 * needed_bytes:
            raise ConfigError(
                f"{folder} has {free / 1e6:.1f} MB free; a checkpoint takes {needed_bytes / 1e6:.1f} MB, and twice "
                "that while the next one is written: make room, or give another --logdir"
            )

    world.from_rank0(check)
