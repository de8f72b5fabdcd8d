"""Callbacks that join the epoch's metrics over the ranks, and run the test pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np

from tfpipe.distributed import World
from tfpipe.training.checkpointing.resume import Checkpoints
from tfpipe.training.evaluate import Evaluator, as_logs
from tfpipe.training.monitor.record import Logs
from tfpipe.training.parallel import averaged_statistics


class OverRanks(keras.callbacks.Callback):
    """Replaces each metric by its mean over ranks, and averages the moving statistics of normalisation layers.

    The mean is exact, since every rank has trained the same number of crops.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        names = sorted(logs)
        means = self.world.sum(np.array([float(logs[name]) for name in names])) / self.world.size
        logs.update(zip(names, means.tolist(), strict=True))
        for variable, mean in zip(
            self.model.non_trainable_weights, averaged_statistics(self.model, self.world), strict=True
        ):
            variable.assign(mean)


class Evaluation(keras.callbacks.Callback):
    """Runs the test pass every `every` epochs and after the last, and adds test_*; a run that stops postpones it.

    It tests the weights that model.keras would have: with `use_ema` the optimizer's averages.
    """

    def __init__(self, evaluator: Evaluator, every: int, checkpoints: Checkpoints) -> None:
        super().__init__()
        self.evaluator, self.every, self.checkpoints = evaluator, every, checkpoints

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if (epoch + 1) % self.every and epoch + 1 != self.checkpoints.epochs:
            return
        with averaged_weights(self.model):
            scores = self.evaluator.run(self.model, lambda: self.model.granted.stop or bool(self.checkpoints.stop))
        if scores is None:
            self.checkpoints.stop_untested(epoch, logs)
        logs.update(as_logs(scores))


@contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Gives `model` the weights that its optimizer averages (`use_ema`), if it does, inside `with`."""
    weights = model.trainable_weights
    before = [weight.numpy() for weight in weights]
    model.optimizer.finalize_variable_values(weights)
    try:
        yield
    finally:
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value)
