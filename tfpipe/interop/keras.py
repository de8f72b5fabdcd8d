"""A Loader's batches for Keras' fit, evaluate and predict, on every backend; it counts those that are trained.

model.fit(
    tfpipe.keras.batches(loader),
    steps_per_epoch=loader.steps_per_epoch,
    epochs=2,
    shuffle=False,  # the Loader does it
    validation_data=tfpipe.keras.batches(test),
    callbacks=[tfpipe.keras.Commit(loader)],
)
"""

from contextlib import suppress
from typing import Any

import keras
import tensorflow as tf

from tfpipe.data.loader import Loader
from tfpipe.data.runtime.shutdown import close_at_exit


def batches(loader: Loader) -> tf.data.Dataset:
    """Returns the batches of a tfpipe.Loader as a dataset, which all backends of Keras take; builds the pipeline.

    Each iteration over test data is a pass from the beginning, whatever the one before has left. Training data continue
    after the batches that the Loader counts as used: with the callback `Commit`, those that a fit took ahead come again
    in the next one. Load a state before you call this. An error of the Loader is TensorFlow's UnknownError there, with
    the same text.
    """
    dataset = tf.data.Dataset.from_generator(loader.this_pass, output_signature=loader.element_spec)
    if loader.split == "train":
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    elif loader.config.data.on_error == "raise" and not loader.step:
        with suppress(TypeError):  # only the XMLs tell
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(loader)))
    # Keras drops iterators in cycles of references. Python's collector may find one in any thread, also in a thread of
    # that very iterator's, e.g. of a prefetch, which would then wait for its own end: so the dataset has no threads.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = options.autotune.enabled = False
    return close_at_exit(dataset.with_options(options))


class Commit(keras.callbacks.Callback):
    """Counts the batches that Keras has used, by their numbers: it takes some ahead, which the state must not count.

    It is a callback of fit for a Loader of training data, of evaluate and predict for one of test data. When these end,
    the Loader continues after the batches that were used.
    """

    def __init__(self, loader: Loader) -> None:
        """Begins with the batches of `loader` that the state does not count."""
        super().__init__()
        self.loader, self._trains = loader, loader.split == "train"
        self._first: int | None = None
        loader.commit(loader.used)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._trains:
            self._first = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._trains:
            self._count(batch)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._trains:
            self.loader.close()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if not self._trains:
            self._first = None

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if not self._trains:
            self._count(batch)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        if not self._trains:
            self.loader.close()

    on_predict_begin, on_predict_batch_end, on_predict_end = on_test_begin, on_test_batch_end, on_test_end

    def _count(self, batch: int) -> None:
        """Counts the batches up to number `batch`, from 0, of an epoch or a pass."""
        if self._first is None:
            # Only now has the pass surely begun.
            self._first = self.loader.used
        # The last call with several steps ends beyond the last batch of a pass.
        self.loader.commit(min(self._first + batch + 1, self.loader.step))
