"""The guard against a loss that is NaN or infinite: it ends the run on all ranks before such weights are saved."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfpipe.distributed import World
from tfpipe.errors import TfpipeError
from tfpipe.training.checkpointing.checkpoints import FOLDER
from tfpipe.training.monitor.record import Logs
from tfpipe.training.run_model import StepResult

# Steps in a row that mixed_float16 may skip: its loss scale is then 2**20 times smaller, and not what overflows.
SKIPPED_STEPS = 20


class NotFiniteGuard(keras.callbacks.Callback):
    """Ends the run when a step's loss is not finite, a step later, when the step's logs are read in any case.

    Comes first, so that no other callback sees such a step. mixed_float16 skips steps that overflow: there the loss of
    SKIPPED_STEPS steps in a row must be so; one rank of Keras' other backends, whose logs have only the mean of an
    epoch, then leaves it to the check of the weights that precedes each checkpoint.
    """

    def __init__(self, run_dir: Path, world: World) -> None:
        super().__init__()
        self.run_dir, self.world = run_dir, world
        self._steps = 0  # in a row whose loss was not finite
        self._first: Any = None  # the first of them, whether this rank's loss was so, and the positions before
        self._before: tf.Tensor | None = None  # positions of the batch before

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._look()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._look()  # at the last step of the epoch, which no further step follows

    def _look(self) -> None:
        result = self.model.results.read
        if result is None:
            return
        anywhere, here = result.not_finite()
        if anywhere and not self._steps:
            self._first = result, here, self._before
        self._steps = self._steps + 1 if anywhere else 0
        self._before = result.positions
        if self._steps and self._steps >= self._patience(result):
            self._end(*self._first)

    def _patience(self, result: StepResult) -> float:
        if not hasattr(self.model.optimizer, "inner_optimizer"):
            return 1
        return math.inf if result.asked is None else SKIPPED_STEPS

    def _end(self, first: StepResult, own_loss: bool, before: tf.Tensor | None) -> NoReturn:
        """Raises TfpipeError on all ranks; every rank must call. `before`: positions of the batch before the first."""
        batches = [None if positions is None else positions.numpy()[:, 0] for positions in (first.positions, before)]
        every: list[Any] = self.world.gather((own_loss, float(first.logs["loss"]), *batches))
        affected = [rank for rank, (is_own, *_) in enumerate(every) if is_own] or list(range(len(every)))
        causes = [
            f"rank {rank}: loss {every[rank][1]:g}, positions {ranges(every[rank][2])}"
            + ("" if every[rank][3] is None else f" (the step before: {ranges(every[rank][3])})")
            for rank in affected
        ]
        checkpoints = sorted((self.run_dir / FOLDER).glob("step-*.npz"))
        kept = "there is no checkpoint yet: start again"
        if checkpoints:
            kept = f"--resume continues from {checkpoints[-1]}"
        raise TfpipeError(
            f"rank {self.world.rank}: the loss is not finite in step {first.step} of the run, on {len(affected)} of "
            f"{len(every)} ranks; {'; '.join(causes)}. tfpipe order names the files at these positions; {kept}, e.g. "
            "with a lower optimizer.learning_rate; training.stop_on_nan false trains on"
        )


def ranges(positions: Sequence[int] | np.ndarray) -> str:
    """Returns positions as text, in ascending order and each once, e.g. "4, 6 to 20 in steps of 2"."""
    parts, numbers = [], np.unique(np.asarray(positions)).tolist()
    while numbers:
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        count = next((n for n in range(1, len(numbers)) if numbers[n] != numbers[0] + n * step), len(numbers))
        taken, numbers = (numbers[:count], numbers[count:]) if count > 2 else (numbers[:1], numbers[1:])
        steps = f" in steps of {step}" if step > 1 else ""
        parts.append(f"{taken[0]} to {taken[-1]}{steps}" if len(taken) > 1 else f"{taken[0]}")
    return ", ".join(parts)
