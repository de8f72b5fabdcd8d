"""A rank's batches, with one answer to every failure: retried if it may pass, otherwise raised with the file's name."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.batch import Batch
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.split import Split
from tfpipe.util.retry import Retry


class Batches(Iterator[Batch]):
    """An iterator over the batches of a rank: training, the test pass and bench take theirs from it.

    After an error of the storage that may pass it builds the pipeline again, from the next crop on; meanwhile the other
    ranks wait in the allreduce.
    """

    def __init__(
        self,
        build: Callable[..., tf.data.Dataset],
        split: Split,
        stream: Stream,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Builds the pipeline.

        `build` builds it from a point of the stream on, as pipeline.build_batches does; `stream` is where it begins;
        `sleep` waits for a number of seconds.
        """
        self._build, self._split, self._stream = build, split, stream
        self._retry = Retry(f"rank {split.world.rank}: ", sleep)
        self.failing = self._cancelled = False
        """Whether a failure is being named, which takes longer than a batch, or has been."""
        self.reached: tf.Tensor | None = None
        """int64 [batch, 2]: positions of the last batch taken; None before the first."""
        self._elements = self._open(stream)

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises:
            TfpipeError: a file cannot be used, which the message names, or the pipeline has failed in another way.
        """
        while True:
            try:
                batch = next(self._elements)
            except tf.errors.OpError as error:
                # Raised here, where Python drops `error`: a reference from another frame would keep the pipeline alive.
                if self._cancelled:
                    raise
                if not self._retry.again(error, reason(error)):
                    self.failing = True
                    raise to_named_error(error, self._split, self._stream, self.reached) from error
            else:
                self._retry.reset()
                self.reached = batch.positions
                return batch
            self._elements = self._open(self.rest())

    @property
    def iterator(self) -> Any:
        """The pipeline's own iterator, for its statistics; another one after a retry."""
        return self._elements.iterator

    @property
    def element_spec(self) -> Batch:
        """Types and shapes of a batch, as tf.data gives them."""
        return self._elements.element_spec

    def cancel(self) -> None:
        """Ends another thread's wait for a batch, with tf.errors.CancelledError; there are no more batches."""
        self._cancelled = True
        self._elements.cancel()

    def _open(self, stream: Stream) -> Cancellable:
        return Cancellable(self._build(stream))

    def rest(self) -> Stream:
        """Returns the stream after the last batch taken."""
        if self.reached is None:
            return self._stream
        return self._stream.moved(self._split.world.rank, Cursor.after(self.reached[-1]))


class PhasedBatches(Batches):
    """The batches of a schedule's phases: where the dataset of a phase ends, that of the next one begins."""

    _taken = 0

    def __init__(
        self, build: Callable[..., tf.data.Dataset], course: tuple[Config, Schedule, int], split: Split, stream: Stream
    ) -> None:
        """Builds the pipeline of the first phase.

        `build` builds the dataset of a config with fixed sizes from a point of the stream on, `resume`, as
        pipeline.build_batches does; `course` is the config, its schedule, and the steps done when `stream` begins.
        """
        self._course = course
        super().__init__(build, split, stream)

    def __next__(self) -> Batch:
        """Returns the next batch; raises as Batches does."""
        while True:
            with suppress(StopIteration):
                batch = super().__next__()
                self._taken += 1
                return batch
            self._elements = self._open(self.rest())
            if self._cancelled:
                self._elements.cancel()

    @property
    def element_spec(self) -> Batch:
        """Types and shapes of the batches of all phases: None for a size that changes."""
        config, schedule, _ = self._course
        specs = [self._build(config.at(phase.epoch)).element_spec for phase in schedule.phases]
        return tf.nest.map_structure(lambda spec, *more: spec.most_specific_common_supertype(more), *specs)

    def _open(self, stream: Stream) -> Cancellable:
        config, schedule, first = self._course
        phase, steps = schedule.phase_after(first + self._taken)
        return Cancellable(self._build(config.at(phase.epoch), resume=stream).take(steps))
