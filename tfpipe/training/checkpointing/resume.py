"""Saving and restoring a run: when it writes checkpoints, and how an interrupted run resumes."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np

from tfpipe.config import TrainingConfig
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, Stopped, TfpipeError, counted
from tfpipe.training.backends import averaged_statistics
from tfpipe.training.checkpointing.checkpoints import FOLDER, Checkpoint, State, write
from tfpipe.training.checkpointing.signals import Stop
from tfpipe.training.monitor.metrics import record
from tfpipe.training.monitor.record import Logs
from tfpipe.training.run_model import Requests, RunCallback, RunModel

logger = logging.getLogger(__name__)


class Checkpoints(RunCallback):
    """Tracks the run's state, saves it when due, and ends the run when any rank was asked to stop.

    Comes last, so that an epoch's metrics are written before the checkpoint that follows them.
    """

    def __init__(self, run_dir: Path, config: TrainingConfig, world: World, start: State, stop: Stop) -> None:
        """Starts from a state; `stop` is the request to stop this process."""
        super().__init__()
        self.run_dir, self.config, self.world, self.stop = run_dir, config.checkpoint, world, stop
        self.state, self.epochs = start, config.epochs
        self.saved_at = time.monotonic()
        self.ended = False
        """Whether the run ends with the current epoch, before its last one."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        every = self.config.every_steps
        agreed = Requests(save=every is not None and (self.state.total_steps + 1) % every == 0)
        self.model.ask(Requests(self.world.rank == 0 and self._is_due(), bool(self.stop)), agreed)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        # Adds the metrics of an interrupted epoch after its first step, in which Keras creates their variables.
        if self.state.metrics:
            _restore_metrics(self.synced_model, self.state, self.world)
        state = self.state
        self.state = replace(state, step=state.step + 1, total_steps=state.total_steps + 1, metrics={}, untested=None)
        if self.state.step == self.state.epoch_steps:
            # fit would run a full epoch, but only the rest of an interrupted one is left.
            self.model.stop_training = True
            self.model.drain()
        elif self.model.granted.stop or self.model.granted.save:
            metrics = {
                variable.path: self.world.sum(np.array(variable, np.float64))
                for variable in self.synced_model.metrics_variables
            }
            self._settle(replace(self.state, metrics=metrics))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.model.stop_training = self.ended
        self.state = replace(self._after(epoch), untested=None)
        if self.ended or epoch + 1 == self.epochs:
            self._save(self.state)
        else:
            self._settle(self.state)

    def stop_untested(self, epoch: int, logs: Logs) -> NoReturn:
        """Ends the run after the last step of `epoch`, before its test pass, which the resumed run makes up for."""
        untested = {name: float(value) for name, value in logs.items()}
        self._end(replace(self._after(epoch), untested=untested))

    def _after(self, epoch: int) -> State:
        """Returns the state after the last step of an epoch; the next one may have other steps."""
        state, loader = replace(self.state, epoch=epoch + 1, step=0), self.model.loader
        phased = loader is not None and loader.data.config.has_phases
        return state.for_phase(loader.schedule.phase(epoch + 1)) if phased else state

    def _settle(self, state: State) -> None:
        if self.model.granted.stop:
            self._end(state)
        elif self.model.granted.save:
            self._save(state)

    def _is_due(self) -> bool:
        """Returns whether a checkpoint is due by the time; then the next one's time begins."""
        minutes, now_s = self.config.every_minutes, time.monotonic()
        if minutes is None or now_s - self.saved_at < 60 * minutes:
            return False
        self.saved_at = now_s
        return True

    def _end(self, state: State) -> NoReturn:
        path = self._save(state, needed=True)
        by = self.stop.signal.name if self.stop.signal is not None else "a signal to another rank"
        record(self.run_dir, self.world, "stop", step=state.total_steps, epoch=state.epoch, by=by)
        raise Stopped(f"{by}: stopped after {_where(state)}; --resume continues from {path}")

    def _save(self, state: State, needed: bool = False) -> Path | None:
        """Saves the state; every rank must call, rank 0 writes. Returns None if writing fails but is not `needed`.

        Raises TfpipeError if weights are not finite.
        """
        model, world = self.synced_model, self.world
        stream = state.stream if model.loader is None else model.loader.rest()
        gathered = world.gather((stream.cursors[world.rank], [variable.numpy() for variable in _generators(model)]))
        cursors, seeds = zip(*gathered, strict=True)
        state = replace(
            state,
            stream=state.stream.at(cursors),
            seeds=np.array(seeds, np.int64).reshape(world.size, -1, 2),
            dropped=model.dropped_images if state.step else 0,
        )
        weights = [variable.numpy() for variable in model.trainable_weights] + averaged_statistics(model, world)
        checkpoint = Checkpoint(state, weights, [variable.numpy() for variable in _slots(model)])
        self.saved_at = time.monotonic()
        # Equal on all ranks, which so decide alike.
        variables = [*model.trainable_weights, *model.non_trainable_weights]
        names = [
            variable.path
            for variable, value in zip(variables, weights, strict=True)
            if np.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all()
        ]
        if names:
            raise TfpipeError(
                f"rank {world.rank}: NaN or infinite after {_where(state)}: {counted(len(names), 'weight')}, e.g. "
                f"{names[0]}; no checkpoint is written, and the last one in {self.run_dir / FOLDER}, if any, is kept; "
                "--resume continues from it, e.g. with a lower optimizer.learning_rate"
            )
        try:
            path = world.from_rank0(lambda: write(self.run_dir, checkpoint, self.config.keep))
        except OSError as error:
            message = f"cannot write a checkpoint after {_where(state)} to {self.run_dir}: {error.strerror or error}"
            if needed:
                raise TfpipeError(f"{message}; the last one, if any, is intact") from error
            logger.warning("%s; the last one, if any, is kept, and training continues", message)
            return None
        logger.info("saved %s, after %s", path, _where(state))
        seconds = round(time.monotonic() - self.saved_at, 3)
        facts = {"step": state.total_steps, "epoch": state.epoch, "file": path.name, "seconds": seconds}
        record(self.run_dir, world, "checkpoint", **facts)
        return path


class PositionsLog(RunCallback):
    """Writes a line for each trained crop to positions-RANK.csv: step, position, crop."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        super().__init__()
        self.path = run_dir / f"positions-{rank}.csv"

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if not self.path.exists():
            self.path.write_text("step,position,crop\n")

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        step = self.model.meter.steps
        with self.path.open("a") as file:
            file.writelines(f"{step},{position},{crop}\n" for position, crop in self.model.positions.numpy())


def restore(model: RunModel, checkpoint: Checkpoint) -> None:
    """Assigns the values of a checkpoint to the model and its optimizer.

    Raises ConfigError if the checkpoint belongs to another model or optimizer.
    """
    for kind, variables, values in (
        ("model", [*model.trainable_weights, *model.non_trainable_weights], checkpoint.weights),
        ("optimizer", _slots(model), checkpoint.optimizer),
    ):
        ours, theirs = ([tuple(array.shape) for array in arrays] for arrays in (variables, values))
        if ours != theirs:
            raise ConfigError(
                f"the checkpoint belongs to another {kind}: {_first_difference(theirs, ours)}; give the config of "
                "the run, or start a new run with another --logdir"
            )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def restore_generators(model: RunModel, state: State, world: World) -> None:
    """Restores the states of this rank's random generators; a rank that is not in `state` keeps its own."""
    generators = _generators(model)
    if world.rank < len(state.seeds) and len(generators) == state.seeds.shape[1]:
        for variable, value in zip(generators, state.seeds[world.rank], strict=True):
            variable.assign(value)


def scale_iterations(model: RunModel, scale: float) -> None:
    """Multiplies the optimizer's step count, and with it the position in the learning rate schedule, by `scale`.

    The steps since the last update remain, because their gradients are accumulated (`gradient_accumulation_steps`).
    """
    optimizer = inner_optimizer(model)
    # The schedule's position; with accumulation, Keras' public `iterations` counts the updates.
    steps, every = optimizer._iterations, optimizer.gradient_accumulation_steps or 1
    updates, accumulated = divmod(int(steps), every)
    steps.assign(round(updates * scale) * every + accumulated)


def inner_optimizer(model: RunModel) -> Any:
    """Returns the optimizer of the config, which mixed_float16 wraps in a LossScaleOptimizer."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def _slots(model: RunModel) -> list[keras.Variable]:
    """Returns the optimizer's variables without a constant learning rate, which comes from the config."""
    return [variable for variable in model.optimizer.variables if variable.name != "learning_rate"]


def _generators(model: RunModel) -> list[keras.Variable]:
    """Returns the states of random generators, the only variables that are not weights."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def _restore_metrics(model: RunModel, state: State, world: World) -> None:
    """Adds the sums of the interrupted epoch to the metrics that it had; a warning names the others.

    A metric that has other variables than it had is another one.
    """
    shapes = {variable.path: tuple(variable.shape) for variable in model.metrics_variables}
    others = {*shapes.items()} ^ {(path, values.shape) for path, values in state.metrics.items()}
    # The variable "top1/total" is one of the metric top1.
    changed = sorted({path.partition("/")[0] for path, _ in others})
    for variable in model.metrics_variables:
        if variable.path.partition("/")[0] not in changed:
            variable.assign_add((state.metrics[variable.path] / world.size).astype(variable.dtype))
    if changed and world.rank == 0:
        logger.warning(
            "metrics that differ from those of the interrupted epoch: %s; their values in epoch %d are from step %d on",
            *(", ".join(changed), state.epoch + 1, state.step + 1),
        )


def _where(state: State) -> str:
    return f"epoch {state.epoch}" if state.step == 0 else f"epoch {state.epoch + 1}, step {state.step}"


def _first_difference(theirs: Sequence[tuple[int, ...]], ours: Sequence[tuple[int, ...]]) -> str:
    for number, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our:
            return f"array {number} is of shape {their} there, {our} here"
    return f"{counted(len(theirs), 'array')} there, {len(ours)} here"
