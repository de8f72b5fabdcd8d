"""The state from which a run starts: a new one, or that of the last checkpoint in its directory."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tfpipe.data.loader import Loader
from tfpipe.data.order.stream import Stream
from tfpipe.errors import counted
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
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.json_text import differences

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """The state from which a run starts."""

    state: State
    checkpoint: Checkpoint | None = None  # the checkpoint to continue from, on rank 0; else None
    scale: float = 1.0  # steps of this run for a step of the checkpoint's run


def first_state(loader: Loader, steps: int) -> State:
    """Returns the state of a new run on the batches of `loader`, in epochs of `steps` steps."""
    config, size = loader.config, loader.world.size
    batch, contract = GlobalBatch(size, config.data.at(0).batch_size), contract_of(config, loader.data)
    factor = {"lr_schedule.scale_by_ranks, the factor": size} if config.lr_schedule.scale_by_ranks else {}
    settings = settings_of(config) | factor
    return State(0, 0, 0, batch, Stream.start(size), contract, epoch_steps=steps, settings=settings)


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
    if config.data.has_phases:
        fresh = fresh.for_phase(loader.schedule.phase(old.epoch))
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

    def is_reached(text: str) -> bool:
        line = parse(text)
        if is_epoch(line):
            return line["epoch"] <= state.epoch - bool(state.untested)
        return line["step"] <= state.total_steps

    _filter(run_dir / METRICS, is_reached)
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
