"""A Loader's batches for Keras' fit, on every backend; it counts those that are trained.

model.fit(
    tfpipe.keras.batches(loader),
    steps_per_epoch=loader.steps_per_epoch,
    epochs=2,
    shuffle=False,  # the Loader does it
    callbacks=[tfpipe.keras.Commit(loader)],
)
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfpipe.data.loader import Loader


def batches(loader: Loader) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the batches of `loader` as NumPy arrays, in a generator: fit takes no other iterator."""
    for batch in loader:
        yield tuple(part.numpy() for part in batch)


class Commit(keras.callbacks.Callback):
    """Counts the batches that fit has trained as used: fit takes some ahead, which the state must not count."""

    def __init__(self, loader: Loader) -> None:
        """Begins with the batches of `loader` that come next."""
        super().__init__()
        self.loader, self.step = loader, loader.step
        loader.commit()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self.step += 1
        self.loader.commit(self.step)
