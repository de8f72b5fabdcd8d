"""Counts the batches of Loader.dataset() that Keras' fit, evaluate and predict have used, on every backend.

model.fit(
    loader.dataset(),
    epochs=2,
    shuffle=False,  # the Loader does it
    validation_data=test.dataset(),
    callbacks=[tfpipe.keras.Commit(loader)],
)
"""

from typing import Any

import keras

from tfpipe.data.loader import Loader


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

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        # What an earlier fit took and did not use, e.g. as it failed, comes again.
        if self._trains and self.loader.step != self.loader.used:
            self.loader.close()

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
