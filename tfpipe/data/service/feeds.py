"""A feed: the blocks that one worker makes for this rank, in order; if the worker fails, another takes over."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfpipe.data.images.decode import NATIVE_IMAGES
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.service.workers import Workers
from tfpipe.errors import TfpipeError, counted
from tfpipe.util.tensorflow_api import CancellationManager

logger = logging.getLogger(__name__)

# Images per block: a block is one element, one network call and about 5 MB of crops; one call of the decoder in C.
IMAGES = NATIVE_IMAGES
# Outstanding requests of a rank to a worker.
UNDER_WAY = 2
# Received blocks that may wait to be taken.
WAITING = 2
LOOK_S = 1.0  # seconds between two checks of the worker
# If this many workers in a row fail at the same block, the block is at fault.
MOST_FAILURES = 3


class WorkerFailure(Exception):
    """A failure of a worker; the message says how it failed."""


class WorkerDataset:
    """The elements of a dataset, as NumPy arrays, made by the worker at an address."""

    def __init__(self, make: Callable[[], tf.data.Dataset], address: str) -> None:
        """Defers `make()`, which builds the dataset, and the connection to `address` until the first iteration."""
        self._make, self._address, self._manager = make, address, CancellationManager()

    def __iter__(self) -> Iterator[Any]:
        distribute = tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.OFF,
            f"grpc://{self._address}",
            max_outstanding_requests=UNDER_WAY,
            # Pixels hardly compress.
            compression=None,
        )
        for element in Cancellable(self._make().apply(distribute), self._manager):
            yield tf.nest.map_structure(lambda tensor: tensor.numpy(), element)

    def cancel(self) -> None:
        """Ends the iteration with tf.errors.CancelledError; callable from any thread."""
        self._manager.start_cancel()


Open = Callable[[int, str], WorkerDataset]
"""(number of a block, a worker's address) -> the blocks from that one on, NamedTuples with a `number`."""


class Feed:
    """The blocks that one of n workers makes: every n-th block.

    TensorFlow's client blocks in C++, forever if its worker is gone, unless it is cancelled. So it runs in a thread of
    its own, while the caller's thread checks that the worker is alive.
    """

    def __init__(self, number: int, open_at: Open, workers: Workers, timeout_s: float) -> None:
        """Requests the blocks from block `number` on.

        `number`, from 0, is the worker's, and that of its first block; `open_at` requests blocks from a worker;
        `workers` gives this one's address, and its replacement's; after `timeout_s` seconds without a block a worker
        counts as dead.
        """
        self._number, self._open, self._workers, self._timeout_s = number, open_at, workers, timeout_s
        self._name = f"data.service: worker {number + 1} of {workers.count}"
        self._failures = 0
        self._begin(number, workers.find(number))

    def take(self, block: int) -> Any:
        """Returns block `block`, which must be the next one of this feed; None after the last.

        Raises:
            TfpipeError: no worker is left, or several failed at this block.
            tf.errors.OpError: the data is at fault: a second worker raised an error too, as this process would have.
        """
        while True:
            if (result := self._wait()) is None:
                return None
            if not isinstance(result, Exception):
                if int(result.number) == block:
                    self._failures = 0
                    return result
                result = WorkerFailure(f"has sent block {int(result.number)} instead of {block}")
            of_worker = isinstance(result, WorkerFailure | tf.errors.OpError)
            # An error from a second worker that is still alive is the data's fault.
            again = isinstance(result, tf.errors.OpError) and self._failures and self._workers.lives(self._address)
            if again or not of_worker:
                raise result
            self._take_over(block, result)

    def close(self) -> None:
        """Ends the thread, after the worker's next answer or LOOK_S: a worker that ends first would never answer."""
        self._closed.set()
        threading.Timer(LOOK_S, self._source.cancel).start()

    def _begin(self, block: int, address: str) -> None:
        self._address, self._source = address, self._open(block, address)
        self._came: queue.Queue[Any] = queue.Queue(WAITING)
        self._closed = threading.Event()
        args = (self._source, self._came, self._closed)
        threading.Thread(target=_pump, args=args, name="service", daemon=True).start()

    def _wait(self) -> Any:
        """Returns the next block, None at the end, or the exception that occurred."""
        began_s = time.monotonic()
        while True:
            try:
                return self._came.get(timeout=LOOK_S)
            except queue.Empty:
                if not self._workers.lives(self._address):
                    return WorkerFailure("is gone")
                if time.monotonic() - began_s > self._timeout_s:
                    self._workers.give_up(self._address)
                    return WorkerFailure(f"has sent nothing for {counted(self._timeout_s, 'second')}")

    def _take_over(self, block: int, error: Exception) -> None:
        self._closed.set()
        self._source.cancel()
        self._failures += 1
        failure = str(error) if isinstance(error, WorkerFailure) else f"has failed ({reason(error)})"
        message = f"{self._name}, at {self._address}, {failure}"
        if self._failures == MOST_FAILURES:
            raise TfpipeError(
                f"{message}, as {MOST_FAILURES - 1} have before it at the same images, the {IMAGES} of block {block} "
                "of this run: damaged images or too little memory may end the workers"
            ) from error
        address = self._workers.find(self._number)
        logger.warning("%s; continues at %s with block %d: no image is lost or comes twice", message, address, block)
        self._begin(block, address)


def _pump(source: WorkerDataset, came: queue.Queue[Any], closed: threading.Event) -> None:
    """Passes blocks from `source` to the queue `came`, and finally None or an error."""

    def put(element: Any) -> None:
        while not closed.is_set():
            try:
                return came.put(element, timeout=LOOK_S)
            except queue.Full:
                continue

    try:
        for block in source:
            put(block)
            if closed.is_set():
                return
        put(None)
    except Exception as error:
        put(error)
