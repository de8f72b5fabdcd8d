"""Diagnoses a rank that receives no batch: lists the files it reads next, and finds those that do not respond."""

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import tensorflow as tf

from tfpipe.data.batch import Batch
from tfpipe.data.failures.batches import Batches
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.runtime.parallelism import READS
from tfpipe.data.runtime.shutdown import END_S
from tfpipe.data.split import Split

# Files that a message names, seconds within which a file has to answer, and files that are asked at the same time.
NAMED = 3
PATIENCE_S = 10.0
TOGETHER = 256
# Seconds in which a failure has to be named, beyond those that a batch may take.
NAMING_S = 60.0
# Batches that are on a device, or on their way, before they are asked for: one is trained, the next one is copied.
AHEAD = 2

Prepare = Callable[[Iterator[Any]], Iterator[Any]]


def pending_files(split: Split, stream: Stream, last: Sequence[int] | None) -> list[str]:
    """Returns the files that this rank's next batch may wait for, in order: each image and, if it is parsed, its XML.

    A batch needs at most an image for each crop, and the decoder's last call some more: fewer than READS.
    `stream` is the one that the dataset was built from; `last` is the position and number of the last crop received,
    None if no batch was.
    """
    if last is not None:
        stream = stream.moved(split.world.rank, Cursor.after(last))
    visits = split.visits(stream, split.config.batch_size + READS)
    in_pass = visits.position >= 0 if split.training else visits.position < split.order.count
    images = [split.catalog.image_and_box(sample)[0] for sample in visits.item[in_pass].tolist()]
    return [path for image in images for path in split.files(image)]


def unreadable_within(paths: Sequence[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Returns the files that cannot be read within `patience_s` seconds, as "PATH: REASON"; [] if all can be.

    Reads TOGETHER of them concurrently, and looks no further than at the first of these groups with a failure.
    """
    groups = (paths[begin : begin + TOGETHER] for begin in range(0, len(paths), TOGETHER))
    return next(filter(None, (_unreadable(group, patience_s) for group in groups)), [])


def _unreadable(paths: Sequence[str], patience_s: float) -> list[str]:
    """Reads all concurrently. Threads that hang in a read keep running, as daemons."""
    failures: dict[str, str] = dict.fromkeys(paths, f"no answer in {patience_s:g} s")

    def read(path: str) -> None:
        try:
            with open(path, "rb") as file:
                file.read()
            failures[path] = ""
        except OSError as error:
            failures[path] = error.strerror or str(error)

    threads = [threading.Thread(target=read, args=(path,), daemon=True) for path in failures]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [f"{path}: {failure}" for path, failure in failures.items() if failure]


def describe(paths: list[str], silent: list[str]) -> str:
    """Returns text that names the files that cannot be read, or, if there are none, the next files of the stream."""
    if silent:
        others = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
        return f"of the next {len(paths)} files {len(silent)} cannot be read: {'; '.join(silent[:NAMED])}{others}"
    return f"the next files can be read by now, e.g. {', '.join(paths[:NAMED])}"


def on_device(device: str | None) -> tuple[Prepare, int]:
    """Returns what a Taker makes of batches, and how many ahead: on `device`, e.g. "GPU:0"; None: where they are."""
    return (iter, 0) if device is None else (partial(map, partial(_put, device)), AHEAD)


def _put(device: str, batch: Batch) -> Batch:
    """Puts the user's data on the device; the rest stays on the CPU, where Python reads it."""
    with tf.device(device):
        return batch._replace(data=tf.nest.map_structure(tf.identity, batch.data))


class Taker:
    """A thread that takes a rank's batches, so that its user need not wait for one forever.

    It ends when the Taker is closed or collected, or the program ends.
    """

    def __init__(
        self,
        batches: Batches,
        limit_s: float,
        prepare: Prepare = iter,
        ahead: int = 0,
    ) -> None:
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
