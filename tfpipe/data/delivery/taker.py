"""A thread that takes a rank's batches, so that their user waits for none forever, and gets them prepared."""

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.batch import Batch
from tfpipe.data.failures.batches import Batches
from tfpipe.data.runtime.shutdown import END_S, EXIT_S

# Seconds in which a failure has to be named, beyond those that a batch may take.
NAMING_S = 60.0
# Batches that are on a device, or on their way, before they are asked for: one is trained, the next one is copied.
ON_DEVICE = 2

Prepare = Callable[[Iterator[Any]], Iterator[Any]]


def on_device(device: str | Callable[[tf.Tensor], Any]) -> Prepare:
    """Returns a function that puts batches on `device`, e.g. "GPU:0", or where a function puts each tensor."""
    return partial(map, partial(_put, partial(_copy_part, device) if isinstance(device, str) else device))


def _put(put: Callable[[tf.Tensor], Any], batch: Batch) -> Batch:
    """Puts the user's data on the device; the rest stays on the CPU, where Python reads it."""
    began_s = time.perf_counter()
    data = tf.nest.map_structure(put, batch.data)
    return batch._replace(data=data, moved_s=time.perf_counter() - began_s)


def _copy_part(device: str, part: tf.Tensor) -> tf.Tensor:
    with tf.device(device):
        return tf.identity(part)


class Answer(NamedTuple):
    """A batch by its number, or the error in its place."""

    number: int
    """Number of the batch, from 1, since all data began."""
    batch: Any = None
    positions: np.ndarray = np.zeros((0, 2), np.int64)
    """int64 [batch, 2]: stream positions and crop numbers of the batch."""
    ready_s: float = math.inf
    """Seconds since 1970 when the batch was ready; math.inf if that is not known."""
    moved_s: float = 0.0
    """Seconds in which a thread put the batch on a device."""
    error: BaseException | None = None
    """StopIteration after the last batch of a pass."""


class Taker:
    """A thread that takes a rank's batches, by their numbers, so that its user need not wait for one forever.

    It also builds the pipeline: an exception of a signal handler must not come within TensorFlow, which it crashes. It
    ends when the Taker is closed or collected, or the program ends.
    """

    def __init__(
        self, batches: Batches, first: int, limit_s: float = math.inf, prepare: Prepare = iter, ahead: int = 0
    ) -> None:
        """Starts the thread, a daemon: a read that hangs cannot be ended.

        The first batch has the number `first`. A batch may take `limit_s` seconds, math.inf: any time; `prepare` makes
        of the batches what the thread takes, `ahead` of them before they are asked for.
        """
        self.batches, self._limit_s, self._ahead = batches, None if math.isinf(limit_s) else limit_s, ahead
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._kept: deque[Answer] = deque()
        self._built = threading.Event()
        """Set when the pipeline is built, or could not be."""
        parts = (batches, prepare, first, self._built, self._asked, self._answers)
        self._thread = threading.Thread(target=_take_all, args=parts, name="batches", daemon=True)
        self.cancel: Callable[[], None] = batches.cancel
        """Ends the wait for a batch, after which there are no more; not for storage that hangs."""
        self._end: Any = weakref.finalize(self, _end, self._thread, self._built, self._asked, self.cancel)
        self._end.atexit = False  # then Delivery.shut_down ends it, after it has silenced who waits
        self._thread.start()  # after what ends it
        if ahead:
            self._asked.put(first + ahead - 1)

    def wait_until_built(self) -> None:
        """Waits until the pipeline is built, or could not be."""
        self._built.wait()

    def failure(self) -> BaseException | None:
        """Waits until the pipeline is built, and returns None, or the error of building it."""
        self.wait_until_built()
        answer = self.peek(0) if self.batches.iterator is None else None
        return None if answer is None else answer.error

    def peek(self, number: int) -> Answer | None:
        """Returns batch `number` or the error in its place, None if it takes too long.

        The batch stays here, and is returned again, until one with a higher number is asked for.
        """
        while self._kept and self._kept[0].number < number:
            self._kept.popleft()
        if not self._kept:
            self.wait_until_built()
            self._asked.put(number + self._ahead)
            if not self._receive(self._limit_s) and not (self.batches.failing and self._receive(NAMING_S)):
                # A pipeline whose storage hangs cannot be taken down: the thread keeps it.
                self._end.detach()
                self._end = weakref.finalize(self, self._asked.put, None)
                self._end.atexit = False
                self.cancel = lambda: None
                return None
        return self._kept[0]

    def close(self) -> None:
        """Ends the thread, or leaves it to a read that hangs."""
        self._asked.put(None)
        self._end()
        self._kept.clear()

    def _receive(self, limit_s: float | None) -> bool:
        """Moves the next answer from the thread's queue to those that are kept; returns whether one came in time.

        In a single call of C: an exception of a signal handler, which comes between two lines of Python, finds the
        answer here or there.
        """
        with suppress(Empty):
            self._kept.extend(islice(iter(partial(self._answers.get, timeout=limit_s), None), 1))
        return bool(self._kept)


def _take_all(
    batches: Batches, prepare: Prepare, number: int, built: threading.Event, asked: SimpleQueue, answers: SimpleQueue
) -> None:
    """Builds the pipeline; takes batches up to the numbers asked for, until that is None or there are no more."""
    try:
        batches.open()
        source = prepare(batches)
    except BaseException as error:
        answers.put(Answer(number, error=error))
        return
    finally:
        built.set()
    while (wanted := asked.get()) is not None:
        while number <= wanted:
            try:
                answer = _answer(number, next(source))
            except BaseException as error:
                answers.put(Answer(number, error=error))
                return
            answers.put(answer)
            del answer
            number += 1


def _answer(number: int, batch: Any) -> Answer:
    """Returns a batch with what Python reads of it, which TensorFlow's own threads would otherwise do for its user."""
    ready, moved_s = getattr(batch, "ready", ()), getattr(batch, "moved_s", ()) or 0.0
    ready_s = math.inf if isinstance(ready, tuple) else float(ready)
    return Answer(number, batch, np.asarray(batch.positions), ready_s, moved_s)


def _end(thread: threading.Thread, built: threading.Event, asked: SimpleQueue, cancel: Callable[[], None]) -> None:
    asked.put(None)
    cancel()
    # A thread that comes out of TensorFlow after the interpreter has ended crashes the process.
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(END_S if built.is_set() else EXIT_S)
