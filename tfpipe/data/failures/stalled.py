"""Diagnoses a rank that receives no batch: lists the files it reads next, and finds those that do not respond."""

import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.runtime.parallelism import READS
from tfpipe.distributed import World

# Files that a message names, and seconds within which a file has to answer.
NAMED = 3
PATIENCE_S = 10.0


def pending_files(
    catalog: Catalog, config: DataConfig, world: World, stream: Stream, last: Sequence[int] | None
) -> list[str]:
    """Returns the files of this rank's next READS samples in order: each image and, if it is parsed, its XML.

    `stream` is the one that the dataset was built from; `last` is the position and number of the last crop received,
    None if no batch was.
    """
    if last is not None:
        stream = stream.moved(world.rank, Cursor.after(last))
    order = catalog.order(config)
    visits = stream.visits(order, world, READS)
    wanted = visits.position < order.count if catalog.split == "test" else visits.position >= 0
    paths = []
    for sample in visits.item[wanted].tolist():
        image, _ = catalog.image_and_box(sample)
        paths += catalog.source.files(catalog, image)
    return paths


def unreadable_within(paths: Sequence[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Returns the files that cannot be read within `patience_s` seconds, as "PATH: REASON". Reads all concurrently.

    Threads that hang in a read keep running, as daemons.
    """
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


class Taker:
    """A thread that takes the elements of an iterator, so that its user need not wait for one for ever."""

    def __init__(self, source: Iterator[Any], limit_s: float) -> None:
        """Starts the thread, a daemon: a read that hangs cannot be ended. An element may take `limit_s` seconds."""
        self._source, self._limit_s = source, limit_s
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._run, name="batches", daemon=True).start()

    def take(self) -> Any:
        """Returns the next element, or raises what the iterator raises; TimeoutError after the limit."""
        self._asked.put(True)
        try:
            element, error = self._answers.get(timeout=self._limit_s)
        except Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return element

    def close(self) -> None:
        """Ends the thread, after the element that it waits for."""
        self._asked.put(False)

    def _run(self) -> None:
        while self._asked.get():
            try:
                answer: tuple[Any, BaseException | None] = (next(self._source), None)
            except BaseException as error:
                answer = (None, error)
            self._answers.put(answer)
            del answer
