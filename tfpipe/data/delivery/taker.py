"""A thread that takes a rank's batches, so that their user waits for none forever, and gets them prepared."""

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import tensorflow as tf

from tfpipe.data.batch import Batch
from tfpipe.data.failures.batches import Batches
from tfpipe.data.runtime.shutdown import END_S

# Seconds in which a failure has to be named, beyond those that a batch may take.
NAMING_S = 60.0
# Batches that are on a device, or on their way, before they are asked for: one is trained, the next one is copied.
AHEAD = 2

Prepare = Callable[[Iterator[Any]], Iterator[Any]]


def on_device(device: str | Callable[[tf.Tensor], Any]) -> Prepare:
    """Returns a function that puts batches on `device`, e.g. "GPU:0", or where a function puts each tensor."""
    return partial(map, partial(_put, partial(_copied, device) if isinstance(device, str) else device))


def _put(put: Callable[[tf.Tensor], Any], batch: Batch) -> Batch:
    """Puts the user's data on the device; the rest stays on the CPU, where Python reads it."""
    began_s = time.perf_counter()
    data = tf.nest.map_structure(put, batch.data)
    return batch._replace(data=data, moved_s=time.perf_counter() - began_s)


def _copied(device: str, part: tf.Tensor) -> tf.Tensor:
    with tf.device(device):
        return tf.identity(part)


class Taker:
    """A thread that takes a rank's batches, so that its user need not wait for one forever.

    It ends when the Taker is closed or collected, or the program ends.
    """

    def __init__(self, batches: Batches, limit_s: float, prepare: Prepare = iter, ahead: int = 0) -> None:
        """Starts the thread, a daemon: a read that hangs cannot be ended.

        An element may take `limit_s` seconds, math.inf: any time; `prepare` makes of the batches what the thread takes,
        `ahead` of them before they are asked for.
        """
        self._batches, self._limit_s = batches, None if math.isinf(limit_s) else limit_s
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._ended = threading.Event()
        parts = (prepare(batches), self._asked, self._answers, self._ended)
        self._thread = threading.Thread(target=_take_all, args=parts, name="batches", daemon=True)
        self._thread.start()
        for _ in range(ahead):
            self._asked.put(True)
        self._end = weakref.finalize(self, _end, self._thread, self._asked, self._ended, batches.cancel)

    def take(self) -> Any:
        """Returns the next element, or raises what the iterator raises; TimeoutError after the limit."""
        self._asked.put(True)
        try:
            element, error = self._answer()
        except Empty:
            # A pipeline whose storage hangs cannot be taken down: the thread keeps it.
            self._end.detach()
            self._end = weakref.finalize(self, _end, self._thread, self._asked, self._ended, None)
            raise TimeoutError from None
        if error is not None:
            raise error
        return element

    def _answer(self) -> tuple[Any, BaseException | None]:
        try:
            return self._answers.get(timeout=self._limit_s)
        except Empty:
            if not self._batches.failing:
                raise
            return self._answers.get(timeout=NAMING_S)

    def close(self) -> None:
        """Ends the thread, or leaves it to a read that hangs."""
        self._end()


def _take_all(source: Iterator[Any], asked: SimpleQueue, answers: SimpleQueue, ended: threading.Event) -> None:
    while asked.get() and not ended.is_set():
        try:
            answer: tuple[Any, BaseException | None] = (next(source), None)
        except BaseException as error:
            answer = (None, error)
        answers.put(answer)
        del answer


def _end(
    thread: threading.Thread, asked: SimpleQueue, ended: threading.Event, cancel: Callable[[], None] | None
) -> None:
    ended.set()
    asked.put(False)
    if cancel is not None:
        cancel()
        # A thread that comes out of TensorFlow after the interpreter has ended crashes the process.
        thread.join(END_S)
