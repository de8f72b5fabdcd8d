"""The callbacks of a config, Keras' or the user's own, in a run that is resumed and may have several ranks."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np

from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.training.by_name import build, named_errors
from tfpipe.training.checkpointing.resume import Checkpoints
from tfpipe.training.evaluate import Scores, averaged_weights
from tfpipe.training.monitor.record import Logs
from tfpipe.training.run_model import RunCallback, RunModel

logger = logging.getLogger(__name__)

# Figures of an epoch besides its metrics.
RATES = ("images_per_second", "input_wait_fraction", "seconds")
BETTER = dict.fromkeys(("loss", "input_wait_fraction", "seconds", "dropped_images"), "min") | dict.fromkeys(
    ("top1", "top5", "macro_recall", "images_per_second"), "max"
)
# Keras' callbacks that do what a run does itself, in their own way, and so undo it.
REFUSED = {
    keras.callbacks.BackupAndRestore: "would load its own weights over those of the checkpoint of a resumed run: "
    "training.checkpoint and --resume do its work, within an epoch too",
    keras.callbacks.SwapEMAWeights: "would swap weights that are the averages already: with optimizer.args.use_ema the "
    "callbacks at an epoch's end, the test pass and model.keras have the averaged weights",
}


class OwnCallbacks(RunCallback):
    """The callbacks of a config on this rank, called as Keras' `fit` calls them, with a plain model.

    Batches are numbered within the epoch, also after a resume. A callback that may look at a batch's metrics gets them,
    for which it waits until the device has ended the step. If one sets `model.stop_training` at the end of an epoch on
    any rank, the run ends on all, complete. At an epoch's end the model has the weights that the test pass has tested.
    """

    def __init__(self, config: Config, world: World, checkpoints: Checkpoints, *, tested: bool) -> None:
        """Builds the callbacks; requires `checkpoints` later in the list; `tested`: there is a test pass.

        Raises ConfigError if a name or an argument is not known.
        """
        super().__init__()
        self.world, self.checkpoints = world, checkpoints
        self.start = checkpoints.state
        self.first_batch = 0
        self.begun = False
        self.known = [*RATES, *(["dropped_images"] if config.data.on_error == "skip" else [])]
        self.known += [f"test_{name}" for name in Scores._fields] if tested else []
        self.own = any(":" in entry.name for entry in config.callbacks)
        kinds = keras.callbacks, keras.callbacks.Callback
        self.built = {
            f"callbacks[{number}]": build(entry.name, entry.args, f"callbacks[{number}]", *kinds)
            for number, entry in enumerate(config.callbacks)
            if entry.ranks == "all" or world.rank == 0
        }
        self.looks_at_batches = any(map(looks_at_batches, self.built.values()))
        for key, callback in self.built.items():
            if reason := next((text for kind, text in REFUSED.items() if isinstance(callback, kind)), ""):
                raise ConfigError(f"{key}.name: {type(callback).__name__} {reason}; leave it out")

    def set_params(self, params: dict[str, Any]) -> None:
        for callback in self.built.values():
            callback.set_params(params)

    def set_model(self, model: RunModel) -> None:
        if self._model is model:
            return
        super().set_model(model)
        self.plain = plain_model(model)
        metrics = {metric.name: metric for metric in model._compile_metrics._user_metrics}
        for key, callback in self.built.items():
            if monitors(callback):
                check_monitor(callback, f"{key}.args", ["loss", *metrics, *self.known], self.own)
                choose_mode(callback, f"{key}.args", metrics)
            callback.set_model(self.plain)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if self.begun:  # for the end of an epoch that the run owed
            return
        self.begun = True
        for key, callback in self.built.items():
            if self.start.total_steps and self.world.rank == 0 and monitors(callback):
                message = "%s: %s knows no epoch before the resume, which is after %d: what is best counts from there"
                logger.warning(message, key, type(callback).__name__, self.start.epoch)
        self._call(lambda callback: callback.on_train_begin(logs))

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._call(lambda callback: callback.on_train_end(logs))

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self.first_batch = self.start.step if epoch == self.start.epoch else 0
        self._call(lambda callback: callback.on_epoch_begin(epoch, logs))

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self._call(lambda callback: callback.on_train_batch_begin(self.first_batch + batch, logs))

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        results = self.model.results
        logs = (results.unread or results.read)[-1].logs if self.looks_at_batches else {}
        logs = {name: float(value) for name, value in logs.items()}
        names = self._call(lambda callback: callback.on_train_batch_end(self.first_batch + batch, dict(logs)))
        if names:
            raise TfpipeError(
                f"rank {self.world.rank}: the callback {' and '.join(names)} ended the run after step "
                f"{self.first_batch + batch + 1} of an epoch; --resume continues from the last checkpoint"
            )

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        with averaged_weights(self.model):
            names = self._call(lambda callback: callback.on_epoch_end(epoch, logs))
        self.checkpoints.ended = bool(self.world.sum(np.array([float(len(names))]))[0])

    def _call(self, call: Callable[[keras.callbacks.Callback], None]) -> list[str]:
        """Calls the callbacks, and returns the names of those that set `model.stop_training`."""
        names = []
        for key, callback in self.built.items():
            self.plain.stop_training = False
            with self.model.meter.spending(f"{key} {type(callback).__name__}"):
                with named_errors(f"{key}.name", type(callback).__name__):
                    call(callback)
            names += [type(callback).__name__] if self.plain.stop_training else []
        return names


def plain_model(model: RunModel) -> keras.Model:
    """Returns the network of a run, compiled with the run's optimizer, loss and metrics, as a plain model of Keras.

    It is saved uncompiled: classes of tfpipe, such as a warmed-up learning rate, would not load elsewhere.
    """
    plain = model.plain()
    metrics = model._compile_metrics._user_metrics
    plain.compile(model.optimizer, model.loss, metrics=metrics, jit_compile=model.jit)
    # Keras asks the first for .keras files; for .h5 files the second says it.
    vars(plain).update(get_compile_config=dict, save=partial(plain.save, include_optimizer=False))
    if keras.backend.backend() == "jax":
        # What a callback that asks for its model calls: variables get the run's values, or those of a test of its own.
        syncs = model.jax_state_sync, plain.jax_state_sync
        vars(plain).update(jax_state_sync=lambda: [sync() for sync in syncs])
    return plain


def looks_at_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback may look at the metrics of a batch; some of Keras' own only do so if they are told."""
    kinds = {getattr(each, "__func__", each) for each in (callback.on_train_batch_end, callback.on_batch_end)}
    if kinds <= {keras.callbacks.Callback.on_train_batch_end, keras.callbacks.Callback.on_batch_end}:
        return False
    is_keras = all(str(getattr(kind, "__module__", "")).startswith("keras.") for kind in kinds)
    return not (is_keras and "epoch" in (getattr(callback, key, None) for key in ("save_freq", "update_freq")))


def monitors(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback is one of Keras' that decide by a metric, `monitor`, in the direction `mode`."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
        return False
    return isinstance(getattr(callback, "monitor", None), str) and hasattr(callback, "monitor_op")


def check_monitor(callback: Any, key: str, names: list[str], is_own: bool) -> None:
    """Checks that the metric a callback monitors will exist, before training; `names` are those that will.

    A callback of the user's own, `is_own`, may add others: then only a warning names it. Raises ConfigError.
    """
    if callback.monitor in names:
        return
    instead = callback.monitor.replace("val_", "test_", 1)
    hint = f'; did you mean "{instead}"?' if instead in names else ""
    message = f'{key}: {type(callback).__name__} monitors "{callback.monitor}", which this run will not have'
    if not is_own:
        raise ConfigError(f"{message}{hint}; accepted: {', '.join(names)}")
    logger.warning("%s, unless a callback of your own adds it%s", message, hint)


def choose_mode(callback: Any, key: str, metrics: dict[str, keras.metrics.Metric]) -> None:
    """Sets a callback's `mode` "auto" to "min" or "max", as the metric that it monitors is better.

    Keras does it at the end of the first epoch, for the names that it knows. Raises ConfigError if it is not known.
    """
    name = callback.monitor
    metric, direction = name.removeprefix("test_"), getattr(metrics.get(name), "_direction", None)
    if callback.mode != "auto":
        return
    if metric not in BETTER and direction is None:
        raise ConfigError(
            f'{key}: mode is missing: {type(callback).__name__} monitors "{name}", of which it is not known whether a '
            'smaller or a larger value is better; accepted: "min" or "max"'
        )
    callback.mode = BETTER.get(metric, "min" if direction == "down" else "max")
