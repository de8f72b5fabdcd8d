"""The open pipeline of a Loader: takes its batches in time, and finds what was left out of them."""

import logging
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.delivery.epochs import Epochs
from tfpipe.data.delivery.taker import Prepare, Taker
from tfpipe.data.failures.batches import Batches, PhasedBatches
from tfpipe.data.failures.missing import Dropped, DroppedLog, DroppedSample
from tfpipe.data.order.stream import Stream
from tfpipe.data.runtime.meter import Meter
from tfpipe.data.runtime.shutdown import END_S
from tfpipe.native import core

logger = logging.getLogger(__name__)
TURNED = (
    "EXIF turns some of the images that this process decodes, which are taken as they are stored, as ImageNet's are: "
    'set data.exif to "apply" to turn them, and their boxes, or to "ignore" if they are meant so'
)
Open = Callable[[Stream], Batches]


def opener(config: Config, build: Callable[..., tf.data.Dataset], epochs: Epochs) -> Open:
    """Returns a function that opens the batches from a point of the stream on; `build` is pipeline.build_batches.

    The dataset of a whole pass is built once, since test passes repeat it. The function holds no reference to the
    Loader: a thread has it, and ends when the Loader is dropped.
    """
    data, start = epochs.data, epochs.progress.stream
    build = partial(build, split=data.catalog.split, world=data.world, data=data)
    whole = cache(lambda: build(config, resume=start))

    def open_batches(stream: Stream) -> Batches:
        if data.config.phased:
            return PhasedBatches(build, (config, epochs.schedule, epochs.step), data, stream)
        return Batches(lambda rest: whole() if rest is start else build(config, resume=rest), data, stream)

    return open_batches


class Delivery:
    """Takes a rank's batches from a point of its stream on, and goes to others; it has no reference to the Loader."""

    def __init__(self, open_batches: Open, epochs: Epochs, dropped: DroppedLog, timeout_s: float) -> None:
        """Opens nothing yet: `open_batches` builds the pipeline from a point of the stream on.

        `timeout_s` is how long a batch may take, math.inf: any time.
        """
        self._open, self._epochs, self.dropped, self.timeout_s = open_batches, epochs, dropped, timeout_s
        self.prepare: Callable[[Batches], Prepare] | None = None
        """Returns a function by which a thread prepares the batches, which have just been opened."""
        self.ahead = 0
        """Batches that the thread prepares before they are asked for."""
        self.meter = Meter()
        self.batches: Batches | None = None
        self.taker: Taker | None = None
        self._finder: Dropped | None = None
        self._warns_of_exif = "exif" not in epochs.data.config.model_fields_set  # a config that has it knows of it

    def opened(self) -> Batches:
        """Returns the batches; builds the pipeline if it is not open."""
        if self.batches is None:
            stream = self._epochs.progress.stream
            self.batches = self._open(stream)
            if self.prepare is not None or self.timeout_s < math.inf:
                prepare: Prepare = iter if self.prepare is None else self.prepare(self.batches)
                self.taker = Taker(self.batches, self.timeout_s, prepare, self.ahead)
            skips = self._epochs.data.config.on_error == "skip"
            self._finder = Dropped(self._epochs.data, stream) if skips else None
            self.meter.restart()
        return self.batches

    def take(self, timed: bool) -> Any:
        """Returns the next batch; `timed`: batches have the time at which they were ready.

        Raises StopIteration at the end of a pass, TimeoutError, and TfpipeError if too many samples were left out.
        """
        if self._epochs.ended:
            raise StopIteration
        batches = self.opened()
        take = partial(next, batches) if self.taker is None else self.taker.take
        try:
            batch = self.meter.take(take, lambda batch: (float(batch.ready), batch.moved_s or 0.0) if timed else None)
        except StopIteration:
            self.look(end=True)
            self.release()
            self._epochs.ended = True
            self.dropped.check()
            raise
        self._epochs.progress.add(batch.positions)
        if self._warns_of_exif and core().unturned():
            self._warns_of_exif = False
            logger.warning(TURNED)
        if self._finder is not None:
            self.dropped.add(self._finder.add(batch.positions.numpy()))
            self.dropped.check()
        return batch

    def look(self, end: bool = False) -> None:
        """Looks for samples left out of the batches since the last time; `end`: a test pass has no more of them."""
        if self._finder is not None:
            self.dropped.add(self._finder.look(end=end))

    def left_out(self) -> list[DroppedSample]:
        """Returns the samples left out of the batches that the state counts, since the last call."""
        self.look()
        self._settle()
        return self.dropped.take()

    def go_to(self, stream: Stream, step: int, crops: int) -> None:
        """Ends the pipeline, and goes to the beginning of `stream`, before which there were `step` batches."""
        self.look()
        self._settle()
        self.dropped.forget()
        self.release()
        self._epochs.progress.restart(stream, step, crops)
        self._epochs.moves += 1

    def release(self) -> None:
        """Ends the pipeline and its thread."""
        if self.taker is not None:
            self.taker.close()
        self.batches = self.taker = self._finder = None

    def cancel(self) -> None:
        """Ends another thread's wait for a batch, which would hold the lock until the batch is there."""
        if (batches := self.batches) is not None and not self._epochs.lock.acquire(blocking=False):
            batches.cancel()
        elif batches is not None:
            self._epochs.lock.release()

    def hold(self) -> None:
        """Ends the pipeline as the process ends, and keeps the lock, for which other threads then wait."""
        self.cancel()
        self._epochs.lock.acquire(timeout=END_S)
        if self.taker is not None:
            self.taker.close()

    def _settle(self) -> None:
        epochs = self._epochs
        over = epochs.ended and epochs.step == epochs.used
        rank = epochs.data.world.rank
        self.dropped.settle(math.inf if over else epochs.progress.rest().cursors[rank].position)
