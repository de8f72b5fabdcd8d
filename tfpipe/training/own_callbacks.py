"""The callbacks of a config, Keras' or the user's own, in a run that is resumed and may have several ranks."""

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.training.by_name import build
from tfpipe.training.checkpointing.resume import Checkpoints
from tfpipe.training.evaluate import Scores
from tfpipe.training.monitor.record import Logs

logger = logging.getLogger(__name__)

# Figures of an epoch besides its metrics.
RATES = ("images_per_second", "input_wait_fraction", "seconds")
BETTER = dict.fromkeys(("loss", "input_wait_fraction", "seconds", "dropped_images"), "min") | dict.fromkeys(
    ("top1", "top5", "macro_recall", "images_per_second"), "max"
)


class OwnCallbacks(keras.callbacks.Callback):
    """The callbacks of a config on this rank, called as Keras' `fit` calls them.

    Batches are numbered within the epoch, also after a resume. If a callback sets `model.stop_training` at the end of
    an epoch on any rank, the run ends on all, complete.
    """

    def __init__(self, config: Config, world: World, checkpoints: Checkpoints, *, tested: bool) -> None:
        """Builds the callbacks; requires `checkpoints` later in the list; `tested`: there is a test pass.

        Raises ConfigError if a name or an argument is not known.
        """
        super().__init__()
        self.world, self.checkpoints = world, checkpoints
        self.start = checkpoints.state
        self.first_batch = 0
        self.known = [*RATES, *(["dropped_images"] if config.data.on_error == "skip" else [])]
        self.known += [f"test_{name}" for name in Scores._fields] if tested else []
        self.own = any(":" in entry.name for entry in config.callbacks)
        kinds = keras.callbacks, keras.callbacks.Callback
        self.built = {
            f"callbacks[{number}]": build(entry.name, entry.args, f"callbacks[{number}]", *kinds)
            for number, entry in enumerate(config.callbacks)
            if entry.ranks == "all" or world.rank == 0
        }

    def set_params(self, params: dict[str, Any]) -> None:
        for callback in self.built.values():
            callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        metrics = {metric.name: metric for metric in model._compile_metrics._user_metrics}
        for key, callback in self.built.items():
            if monitors(callback):
                check_monitor(callback, f"{key}.args", ["loss", *metrics, *self.known], self.own)
                choose_mode(callback, f"{key}.args", metrics)
            callback.set_model(model)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._call(lambda callback: callback.on_train_begin(logs))

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._call(lambda callback: callback.on_train_end(logs))

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self.first_batch = self.start.step if epoch == self.start.epoch else 0
        self._call(lambda callback: callback.on_epoch_begin(epoch, logs))

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self._call(lambda callback: callback.on_train_batch_begin(self.first_batch + batch, logs))

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        names = self._call(lambda callback: callback.on_train_batch_end(self.first_batch + batch, logs))
        if names:
            raise TfpipeError(
                f"rank {self.world.rank}: the callback {' and '.join(names)} ended the run after step "
                f"{self.first_batch + batch + 1} of an epoch; --resume continues from the last checkpoint"
            )

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        names = self._call(lambda callback: callback.on_epoch_end(epoch, logs))
        self.checkpoints.ended = bool(self.world.sum(np.array([float(len(names))]))[0])

    def _call(self, call: Callable[[keras.callbacks.Callback], None]) -> list[str]:
        """Calls the callbacks, and returns the names of those that set `model.stop_training`.

        The attribute keeps the value that it had before: Checkpoints ends each epoch by it.
        """
        names = []
        before = self.model.stop_training
        for callback in self.built.values():
            self.model.stop_training = False
            call(callback)
            names += [type(callback).__name__] if self.model.stop_training else []
        self.model.stop_training = before
        return names


def monitors(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback is one of Keras' that decide by a metric, `monitor`, in the direction `mode`."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
        return False
    return isinstance(getattr(callback, "monitor", None), str) and hasattr(callback, "monitor_op")


def check_monitor(callback: Any, key: str, names: list[str], own: bool) -> None:
    """Checks that the metric a callback monitors will exist, before training; `names` are those that will.

    A callback of the user's own, `own`, may add others: then only a warning names it. Raises ConfigError.
    """
    if callback.monitor in names:
        return
    instead = callback.monitor.replace("val_", "test_", 1)
    hint = f'; did you mean "{instead}"?' if instead in names else ""
    message = f'{key}: {type(callback).__name__} monitors "{callback.monitor}", which this run will not have'
    if not own:
        raise ConfigError(f"{message}{hint}; accepted: {', '.join(names)}")
    logger.warning("%s, unless a callback of your own adds it%s", message, hint)


def choose_mode(callback: Any, key: str, metrics: dict[str, keras.metrics.Metric]) -> None:
    """Sets a callback's `mode` "auto" to "min" or "max", as the metric that it monitors is better.

    Keras does it at the end of the first epoch, for the names that it knows. Raises ConfigError if it is not known.
    """
    name = callback.monitor
    known, direction = name.removeprefix("test_"), getattr(metrics.get(name), "_direction", None)
    if callback.mode != "auto":
        return
    if known not in BETTER and direction is None:
        raise ConfigError(
            f'{key}: mode is missing: {type(callback).__name__} monitors "{name}", of which it is not known whether a '
            'smaller or a larger value is better; accepted: "min" or "max"'
        )
    callback.mode = BETTER.get(known, "min" if direction == "down" else "max")
