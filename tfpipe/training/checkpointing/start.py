"""The start of a run: in a new directory, or in that of an earlier run, after its last checkpoint."""

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from tfpipe.data.loader import Loader
from tfpipe.data.order.stream import Stream
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.training.checkpointing.checkpoints import (
    FOLDER,
    Checkpoint,
    GlobalBatch,
    State,
    carried_over,
    check_contract,
    contract_of,
    read_latest,
    settings_of,
)
from tfpipe.training.monitor.metrics import METRICS, is_epoch, lines, parse, warn_damaged
from tfpipe.training.skipping import BAD_FILES
from tfpipe.util.atomic_write import PARTIAL, atomic_write, remove_leftovers
from tfpipe.util.json_text import differences
from tfpipe.util.locks import locked

logger = logging.getLogger(__name__)

LOCK = "lock"
# Seconds to wait for a rank 0 on a host that the run has lost: after 90 s without an answer it ends (monitor.peers),
# and the job scripts resume without it after 60.
PATIENCE_S = 60.0


class Start(NamedTuple):
    """The state from which a run starts."""

    state: State
    checkpoint: Checkpoint | None = None  # the checkpoint to continue from, on rank 0; else None
    scale: float = 1.0  # steps of this run for a step of the checkpoint's run


def choose_run_dir(
    logdir: Path | None, config_path: Path, world: World, resume: Literal["must", "auto"] | None = None
) -> Path:
    """Creates and returns `logdir`, or a new runs/NAME-TIME named after the config; the same on every rank.

    `resume` is "must" for a run that has a checkpoint, "auto" for one that may have one, None for a new run. Raises
    ConfigError if `logdir` holds another run, has no checkpoint to resume, or cannot be written.
    """

    def choose() -> Path:
        if resume is not None and logdir is None:
            raise ConfigError("--resume needs --logdir, the directory of the run to continue")
        run_dir = logdir or Path("runs") / f"{config_path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        checkpoints = any((run_dir / FOLDER).glob("*.npz"))
        if resume == "must" and not checkpoints:
            raise ConfigError(f"no checkpoint in {run_dir / FOLDER} to resume; --resume auto would start a new run")
        if resume is None and logdir is not None and (checkpoints or (run_dir / METRICS).exists()):
            raise ConfigError(f"{run_dir} holds an earlier run; continue it with --resume, or give another --logdir")
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


def first_state(loader: Loader, steps: int) -> State:
    """Returns the state of a new run on the batches of `loader`, in epochs of `steps` steps."""
    config, size = loader.config, loader.world.size
    batch, contract = GlobalBatch(size, config.data.at(0).batch_size), contract_of(config, loader.data)
    return State(0, 0, 0, batch, Stream.start(size), contract, epoch_steps=steps, settings=settings_of(config))


def find_start(loader: Loader, run_dir: Path, steps: int, *, resume: bool = False, anyway: bool = False) -> Start:
    """Returns the initial state, or with `resume` that of the last checkpoint in `run_dir`.

    Every rank must call. `loader` has the training data, the first epoch `steps` steps. Raises ConfigError if this run
    breaks the contract with the checkpoint's run (`check_contract`); with `anyway`, continues.
    """
    config, world, fresh = loader.config, loader.world, first_state(loader, steps)
    checkpoints: list[Checkpoint] = []

    def look() -> State:
        # The weights stay on rank 0, which broadcasts them later as at the start of any run.
        checkpoints.extend(filter(None, [read_latest(run_dir)]))
        return checkpoints[0].state if checkpoints else fresh

    old = world.from_rank0(look) if resume else fresh
    if old.total_steps == 0:
        if resume:
            logger.info("no checkpoint in %s: starts a new run", run_dir / FOLDER)
        if world.rank == 0:
            forget_after(run_dir, fresh)
        return Start(fresh)
    if config.data.phased:
        fresh = fresh.within(loader.schedule.phase(old.epoch))
        steps = fresh.epoch_steps
    check_contract(old, fresh.contract, fresh.batch, anyway)
    if world.rank == 0:
        names = list({**old.settings, **fresh.settings})
        for difference in differences(old.settings, fresh.settings, "then", "now", names):
            logger.warning("resumes with another setting than the run had: %s", difference)
        forget_after(run_dir, old)
    step, scale = carried_over(old, fresh.batch, steps, config.training.steps_per_epoch is not None)
    now = {name: getattr(fresh, name) for name in ("batch", "contract", "settings", "epoch_steps")}
    state = replace(old, step=step, stream=old.stream.over(world.size), **now)
    logger.info("resumes after %s, in epoch %d", counted(state.total_steps, "step"), state.epoch + 1)
    return Start(state, checkpoints[0] if checkpoints else None, scale)


def forget_after(run_dir: Path, state: State) -> None:
    """Deletes the lines after `state` from the run's records, since the resumed run writes them again."""

    def reached(text: str) -> bool:
        line = parse(text)
        if is_epoch(line):
            return line["epoch"] <= state.epoch - bool(state.untested)
        return line["step"] <= state.total_steps

    _filter(run_dir / METRICS, reached)
    for path in (*run_dir.glob("positions-*.csv"), run_dir / BAD_FILES):
        _filter(path, lambda line: line.startswith("step") or int(re.split("[,\t]", line)[0]) <= state.total_steps)


def _filter(path: Path, keep: Callable[[str], bool]) -> None:
    """Keeps only the lines that `keep` accepts; drops a file without any.

    Damaged lines, of which `keep` raises ValueError, go with a warning, but for a last one that was being written.
    """
    if not path.exists():
        return
    before, rest = lines(path), []
    for number, line in enumerate(before, start=1):
        try:
            rest += [line] if keep(line) and line.endswith("\n") else []
        except ValueError:
            warn_damaged(path, number, line)
    if not rest:
        path.unlink()
    elif rest != before:
        with atomic_write(path) as partial:
            partial.write_text("".join(rest), errors="surrogateescape")
