"""The guard against a loss that is NaN or infinite: it ends the run on all ranks before such weights are saved."""

import math
from pathlib import Path
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tfpipe.collectives.agreement import spans
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError
from tfpipe.training.checkpointing.checkpoints import checkpoint_paths
from tfpipe.training.monitor.record import Logs
from tfpipe.training.run_model import RunCallback, StepResult

# Steps in a row that mixed_float16 may skip: its loss scale is then 2**20 times smaller, and not what overflows.
SKIPPED_STEPS = 20


class NotFiniteGuard(RunCallback):
    """Ends the run when a step's loss is not finite, once its result is read, which is before any checkpoint.

    Comes first, so that no other callback sees such a step. mixed_float16 skips steps that overflow: there the loss of
    SKIPPED_STEPS steps in a row must be so, which one rank of JAX or PyTorch leaves to the check of a checkpoint.
    """

    def __init__(self, run_dir: Path, world: World) -> None:
        super().__init__()
        self.run_dir, self.world = run_dir, world
        self._steps = 0  # in a row whose loss was not finite
        self._first: Any = None  # the first of them, whether this rank's loss was so, and the positions before
        self._before: tf.Tensor | None = None  # positions of the batch before

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        of_mean = self.world.size == 1 and keras.backend.backend() != "tensorflow"
        skips = hasattr(self.model.optimizer, "inner_optimizer")
        patience = (math.inf if of_mean else SKIPPED_STEPS) if skips else 1
        for result in self.model.results.read:
            anywhere, here = (result.asked[2:] > 0).tolist()
            if anywhere and not self._steps:
                self._first = result, here, self._before
            self._steps = self._steps + 1 if anywhere else 0
            self._before = result.positions
            if self._steps >= patience:
                self._end(*self._first)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.on_train_batch_end(epoch)  # at the last steps of the epoch

    def _end(self, first: StepResult, own_loss: bool, before: tf.Tensor | None) -> NoReturn:
        """Raises TfpipeError on all ranks; every rank must call. `before`: positions of the batch before the first."""
        batches = [None if positions is None else positions.numpy()[:, 0] for positions in (first.positions, before)]
        every: list[Any] = self.world.gather((own_loss, float(first.logs["loss"]), *batches))
        affected = [rank for rank, (is_own, *_) in enumerate(every) if is_own] or list(range(len(every)))
        causes = [
            f"rank {rank}: loss {every[rank][1]:g}, positions {', '.join(spans(every[rank][2]))}"
            + ("" if every[rank][3] is None else f" (the step before: {', '.join(spans(every[rank][3]))})")
            for rank in affected
        ]
        saved = checkpoint_paths(self.run_dir)
        advice = f"--resume continues from {saved[0]}" if saved else "there is no checkpoint yet: start again"
        raise TfpipeError(
            f"rank {self.world.rank}: the loss is not finite in step {first.step} of the run, on {len(affected)} of "
            f"{len(every)} ranks; {'; '.join(causes)}. tfpipe order names the files at these positions; {advice}, e.g. "
            "with a lower optimizer.learning_rate"
        )
