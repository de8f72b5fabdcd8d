"""A rank's batches, with one answer to every failure: retried if it may pass, otherwise raised with the file's name."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfpipe.data.batch import Batch
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.split import Split
from tfpipe.util.retry import Retry

Build = Callable[[Stream, int], tf.data.Dataset]


class Batches(Iterator[Batch]):
    """An iterator over the batches of a rank: training, the test pass and bench take theirs from it.

    After an error of the storage that may pass it builds the pipeline again, from the next crop on; meanwhile the other
    ranks wait in the allreduce. Where a dataset of training data ends, as that of a phase does, the next one begins.
    """

    def __init__(
        self, build: Build, split: Split, stream: Stream, sleep: Callable[[float], object] | None = None
    ) -> None:
        """Builds nothing yet: `open`, or the first batch taken, builds the pipeline.

        `build` builds it from a point of the stream on, as pipeline.build_batches does, given the number of batches
        taken before; `stream` is where it begins; `sleep` waits for a number of seconds, by default until `cancel`.
        """
        self._build, self._split, self._stream = build, split, stream
        self._cancelled = threading.Event()
        self._retry = Retry(f"rank {split.world.rank}: ", sleep or self._cancelled.wait)
        self.failing = False
        """Whether a failure is being named, which takes longer than a batch, or has been."""
        self.taken = 0
        """Number of batches taken."""
        self.reached: tf.Tensor | None = None
        """int64 [batch, 2]: positions of the last batch taken; None before the first."""
        self._elements: Any = None

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises:
            TfpipeError: a file cannot be used, which the message names, or the pipeline has failed in another way.
            CancelledError: `cancel` was called.
        """
        self.open()
        while True:
            try:
                batch = next(self._elements)
            except StopIteration:
                if not self._split.training:
                    raise
            except tf.errors.OpError as error:
                # Raised here, where Python drops `error`: a reference from another frame would keep the pipeline alive.
                if self._cancelled.is_set():
                    raise
                if not self._retry.again(error, reason(error)):
                    self.failing = True
                    raise to_named_error(error, self._split, self._stream, self.reached) from error
            else:
                self._retry.reset()
                self.taken, self.reached = self.taken + 1, batch.positions
                return batch
            if self._cancelled.is_set():
                raise tf.errors.CancelledError(None, None, "the pipeline has been ended")
            self._build_elements()

    @property
    def iterator(self) -> Any:
        """The pipeline's own iterator, for its statistics; another one after a retry, None before it is built."""
        return None if self._elements is None else self._elements.iterator

    @property
    def element_spec(self) -> Batch:
        """Types and shapes of a batch, as tf.data gives them."""
        return self._elements.element_spec

    def cancel(self) -> None:
        """Ends another thread's wait for a batch, with tf.errors.CancelledError; there are no more batches."""
        self._cancelled.set()
        if self._elements is not None:
            self._elements.cancel()

    def rest(self) -> Stream:
        """Returns the stream after the last batch taken."""
        if self.reached is None:
            return self._stream
        return self._stream.moved(self._split.world.rank, Cursor.after(self.reached[-1]))

    def open(self) -> None:
        """Builds the pipeline if it is not built."""
        if self._elements is None:
            self._build_elements()

    def _build_elements(self) -> None:
        self._elements = self._iterate(self._build(self.rest(), self.taken))
        if self._cancelled.is_set():  # while it was built
            self._elements.cancel()

    def _iterate(self, dataset: tf.data.Dataset) -> Any:
        return Cancellable(dataset)
