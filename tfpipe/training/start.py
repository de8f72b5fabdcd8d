"""Where a run begins: in a new directory, or in that of an earlier one, after its last checkpoint."""

import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from tfpipe.config import Config
from tfpipe.data.catalog import Catalog
from tfpipe.data.lock import locked
from tfpipe.data.stream import Stream
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.training.checkpoints import (
    FOLDER,
    Batch,
    Checkpoint,
    State,
    carried_over,
    check_contract,
    contract_of,
    read_latest,
)
from tfpipe.training.metrics import METRICS, is_epoch
from tfpipe.training.skipping import BAD_FILES

logger = logging.getLogger(__name__)

LOCK = "lock"


class Start(NamedTuple):
    """What a run sets out from."""

    state: State
    checkpoint: Checkpoint | None = None
    """On rank 0, if the run goes on from one."""
    scale: float = 1.0
    """Crops that a step trained when the checkpoint was made, as a multiple of those that it trains now."""


def choose_run_dir(
    logdir: Path | None, config_path: Path, world: World, resume: Literal["must", "auto"] | None = None
) -> Path:
    """`logdir`, or a new runs/NAME-TIME for the config of that name; the same on every rank.

    Args:
        logdir: what the user gave.
        config_path: names the run.
        world: this rank, of how many.
        resume: "must" for a run that has a checkpoint, "auto" for one that may have, None for a new one.

    Raises:
        ConfigError: `logdir` holds another run, or none to resume, or cannot be written.
    """

    def choose() -> Path:
        if resume is not None and logdir is None:
            raise ConfigError("--resume needs --logdir, the directory of the run that goes on")
        chosen = logdir or Path("runs") / f"{config_path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        checkpoints = any((chosen / FOLDER).glob("*.npz"))
        if resume == "must" and not checkpoints:
            raise ConfigError(f"{chosen / FOLDER} holds no checkpoint to go on from; --resume auto would start anew")
        if resume is None and (checkpoints or (chosen / METRICS).exists()):
            raise ConfigError(f"{chosen} holds an earlier run; go on with --resume, or give another --logdir")
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {chosen}: {error.strerror}") from error
        return chosen

    return world.from_rank0(choose)


@contextmanager
def run_lock(run_dir: Path, world: World) -> Iterator[None]:
    """Keeps other runs out of `run_dir` meanwhile; a crash does not leave it behind. Every rank must call.

    Raises:
        ConfigError: another run is in it, or it cannot be written.
    """
    with ExitStack() as held:

        def take() -> None:
            try:
                held.enter_context(locked(run_dir / LOCK, "training in this directory"))
            except OSError as error:
                raise ConfigError(f"cannot write to the run directory {run_dir}: {error.strerror}") from error

        world.from_rank0(take)
        yield


def check_room(run_dir: Path, needed_bytes: int, world: World) -> None:
    """Makes sure, before training starts, that checkpoints can be written. Every rank must call.

    Args:
        run_dir: of the run.
        needed_bytes: of one checkpoint; while the next is written there are two.
        world: this rank, of how many.

    Raises:
        ConfigError: they cannot.
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


def find_start(
    config: Config, world: World, run_dir: Path, catalog: Catalog, steps: int, resume: bool, anyway: bool
) -> Start:
    """The beginning, or with `resume` where the last checkpoint in `run_dir` was made.

    Args:
        config: of the run.
        world: this rank, of how many; every rank must call.
        run_dir: of the run.
        catalog: of its training data.
        steps: of an epoch.
        resume: go on from the last checkpoint, if there is one.
        anyway: also if the run that it is of differs from this one in what counts.

    Raises:
        ConfigError: the checkpoint is of a run that differs from this one in what counts.
    """
    batch = Batch(world.size, config.data.batch_size)
    contract = contract_of(config, catalog)
    fresh = State(0, 0, 0, batch, Stream.start(world.size), contract)
    found: list[Checkpoint] = []

    def look() -> State:
        # The weights stay on rank 0, which gives them to the others as it does at the start of any run.
        found.extend(filter(None, [read_latest(run_dir)]))
        return found[0].state if found else fresh

    old = world.from_rank0(look) if resume else fresh
    if old.total_steps == 0:
        if resume:
            logger.info("no checkpoint in %s: starts anew", run_dir / FOLDER)
            if world.rank == 0:
                forget_after(run_dir, fresh)
        return Start(fresh)
    check_contract(old, contract, batch, anyway)
    if world.rank == 0:
        forget_after(run_dir, old)
    state = replace(
        old,
        step=carried_over(old, batch, steps),
        batch=batch,
        stream=old.stream.over(world.size),
        contract=contract,
    )
    logger.info("goes on after %d steps, in epoch %d", state.total_steps, state.epoch + 1)
    return Start(state, found[0] if found else None, old.batch.crops / batch.crops)


def forget_after(run_dir: Path, state: State) -> None:
    """Takes out of the run's records what lies after `state`, and so is going to be written once more."""

    def reached(text: str) -> bool:
        line = json.loads(text)
        if is_epoch(line):
            return line["epoch"] <= state.epoch - bool(state.untested)
        return line["step"] <= state.total_steps

    _filter(run_dir / METRICS, reached)
    for path in (*run_dir.glob("positions-*.csv"), run_dir / BAD_FILES):
        _filter(path, lambda line: line.startswith("step") or int(re.split("[,\t]", line)[0]) <= state.total_steps)


def _filter(path: Path, keep: Callable[[str], bool]) -> None:
    """Lines that were cut off by a crash go too."""
    if not path.exists():
        return
    text = path.read_text()
    kept = "".join(line for line in text.splitlines(keepends=True) if line.endswith("\n") and keep(line))
    if kept != text:
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(kept)
        partial.replace(path)
