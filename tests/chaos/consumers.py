"""A consumer of a Loader that keeps what it has used: `python -m tests.chaos.consumers CONFIG RUN KIND OVERRIDE...`.

It takes the epochs of `training.epochs` in pieces of some batches, of which some end with a break and some with an
exception, and takes more batches from the same Loader. Every `training.checkpoint.every_steps` batches RUN/used.json
gets the Loader's state together with the crops used until then; the next start resumes from it.
"""

import faulthandler
import itertools
import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfpipe
from tests.support.consumers import LOOPS, keys_of
from tfpipe.data.loader import Loader

# How the consumers of support/consumers.py that iterate are called, and the pieces of fit by its steps a call.
ITERATING = ("for", "epoch", "DataLoader", "StatefulDataLoader", "JAX", "JAX, sharded")
FITTING = {"fit": 1, "fit, two steps a call": 2}
KINDS = ("Lightning", *ITERATING, *FITTING)
# Those that Horovod connects.
ON_RANKS = ("for", "epoch")
USED = "used.json"
# Seconds after which a consumer says what its threads do: less than the bound of a run's commands.
LONG_S = 240


class Enough(Exception):
    """Ends a piece."""


class Used:
    """The crops used on all ranks, and the state that counts them, in the run's folder."""

    def __init__(self, path: Path, loader: Loader, every: int) -> None:
        """Reads what an earlier start has written to `path`; `every` is the number of batches between two saves."""
        self.path, self.loader, self.every = path, loader, every
        self.saved = json.loads(path.read_text()) if path.exists() else {"step": 0, "used": [], "left_out": []}
        self.new: list[list[list[int]]] = []
        """Positions of the batches that were used since the last save."""

    def add(self, positions: Any, state: Callable[[], dict[str, Any]]) -> None:
        """Notes a batch that was used; saves if that is due. All ranks save after the same batches."""
        self.new.append(np.asarray(positions).tolist())
        if len(self.new) >= self.every:
            self.save(state)

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """Writes the file, completely or not at all."""
        left = [sample.position for sample in self.loader.dropped()]
        ranks = self.loader.world.gather((self.new, left))
        saved = {
            "state": state(),
            "crops": self.loader.state_dict()["crops"],
            "step": self.saved["step"] + len(self.new),
            "used": self.saved["used"] + [crop for new, _ in ranks for batch in new for crop in batch],
            "left_out": self.saved["left_out"] + [position for _, left in ranks for position in left],
        }
        self.saved, self.new = saved, []
        if self.loader.world.rank == 0:
            partial = self.path.with_suffix(".new")
            partial.write_text(json.dumps(saved))
            partial.replace(self.path)


class Iterating:
    def __init__(self, config: tfpipe.Config, path: Path, kind: str) -> None:
        self.taker = LOOPS[kind](config, "train", positions=True)
        self.loader = self.taker.loader
        self.used = Used(path, self.loader, config.training.checkpoint.every_steps)
        if "state" in self.used.saved:
            self.taker.load(self.used.saved["state"])

    def piece(self, count: int, failing: bool) -> None:
        """Uses `count` batches, or fewer if an epoch ends; then leaves the loop, by an exception if `failing`."""
        for number, (_, _, positions) in enumerate(self.taker.batches(), 1):
            self.used.add(positions, self.taker.state)
            if number == count and failing:
                raise Enough
            if number == count:
                break

    def end(self) -> None:
        self.used.save(self.taker.state)


class Lightened(Iterating):
    def piece(self, count: int, failing: bool) -> None:
        """Trains `count` batches; then an exception ends fit if `failing`."""
        numbers = itertools.count(1)

        def use(batch: Any, _: int) -> None:
            self.used.add(batch[2], self.taker.state)
            if next(numbers) == count and failing:
                raise Enough

        self.taker.run(use, count)


class HandingOut(Loader):
    """A Loader that knows the positions and pixels of the batches it has handed out, by their number."""

    def __init__(self, config: tfpipe.Config) -> None:
        super().__init__(config)
        self.handed: dict[int, tuple[Any, list[int]]] = {}

    def _finish(self, batch: Any) -> Any:
        if not isinstance(batch.positions, tf.TensorSpec):
            # The position moves last, once the batch is finished.
            self.handed[self.step + 1] = batch.positions.numpy(), keys_of(batch.data[0])
        return super()._finish(batch)


class Fitting:
    """Keras' fit, of a model that knows the pixels which it has trained."""

    def __init__(self, config: tfpipe.Config, path: Path, kind: str) -> None:
        self.config, self.per_call, self.loader = config, FITTING[kind], HandingOut(config)
        self.used = Used(path, self.loader, config.training.checkpoint.every_steps)
        if "state" in self.used.saved:
            self.loader.load_state_dict(self.used.saved["state"])
        self.step, self.trained = self.loader.step, []
        self.model, self.commit = self.noting_model(), tfpipe.keras.Commit(self.loader)

    def noting_model(self) -> Any:
        """Returns a model that notes each batch which it trains."""
        import keras

        trained = self.trained

        class Noting(keras.Model):
            def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
                tf.numpy_function(lambda pixels: trained.append(keys_of(pixels)), [x], [])
                return keras.ops.mean(y_pred)

        pixels = keras.Input((*self.config.data.crop_image_size, self.config.data.num_channels), dtype="uint8")
        outputs = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(pixels)))
        model = Noting(pixels, outputs)
        model.compile("sgd", steps_per_execution=self.per_call, jit_compile=False)
        return model

    def note(self) -> None:
        """Notes the batches that the state counts, which must be those that the model has trained."""
        while self.step < self.loader.used:
            self.step += 1
            positions, keys = self.loader.handed.pop(self.step)
            assert self.trained and self.trained.pop(0) == keys, f"counted, but not trained: {positions.tolist()}"
            self.used.new.append(positions.tolist())
        assert not self.trained, f"trained, but not counted: {self.trained}"
        if len(self.used.new) >= self.used.every:
            self.used.save(self.loader.state_dict)

    def piece(self, count: int, failing: bool) -> None:
        """Trains `count` batches; then an exception ends fit if `failing`."""
        import keras

        consumer = self

        class Note(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                consumer.note()
                if failing and batch + 1 >= count:
                    raise Enough

        self.model.fit(
            self.loader.dataset(), steps_per_epoch=count, shuffle=False, verbose=0, callbacks=[self.commit, Note()]
        )

    def end(self) -> None:
        self.used.save(self.loader.state_dict)


def consume(path: str, run: str, kind: str, *overrides: str) -> int:
    """Takes what is left of the epochs; returns the exit code."""
    try:
        config = tfpipe.load_config(path, overrides)
        Path(run).mkdir(exist_ok=True)
        how = Fitting if kind in FITTING else Lightened if kind == "Lightning" else Iterating
        consumer = how(config, Path(run) / USED, kind)
        loader = consumer.loader
        last, rng = config.training.epochs * loader.steps_per_epoch, random.Random(loader.used)
        while loader.used < last:
            count, failing = min(rng.choice((1, 2, 5, 30)), last - loader.used), rng.random() < 0.3
            with suppress(Enough):
                consumer.piece(count, failing)
        consumer.end()
        loader.close()
    except tf.errors.UnknownError as error:
        # The Loader's error within Keras has the same text; other ranks notice that one has ended.
        _, named, text = error.message.partition("tfpipe.errors.TfpipeError: ")
        if not named and "Horovod has been shut down" not in error.message:
            raise
        print(f"error: {text or 'another rank has ended'}", file=sys.stderr)
        return 1
    except tfpipe.TfpipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LONG_S)
    sys.exit(consume(*sys.argv[1:]))
