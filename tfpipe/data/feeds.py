"""A feed: the blocks that one server makes for this rank, in order, from another server if that one fails."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import tensorflow as tf

from tfpipe.data.reasons import reason
from tfpipe.data.servers import Servers
from tfpipe.errors import TfpipeError

logger = logging.getLogger(__name__)

# Of a block: an element costs a call over the network, and holds some 5 MB of crops.
IMAGES = 32
# Blocks that have come and wait to be taken.
WAITING = 2
LOOK_S = 1.0
# Servers that fail at one and the same block, before it is taken to be the block's fault.
MOST_FAILURES = 3


class Failed(Exception):
    """A server does not do its work; says in which way."""


class Source(Protocol):
    """Blocks on their way from a server."""

    def __iter__(self) -> Iterator[Any]:
        """The blocks, NamedTuples with a `number`."""

    def cancel(self) -> None:
        """Ends the iteration, from any thread, with an error."""


Open = Callable[[int, str], Source]
"""From the number of a block and a server's address to the blocks from that one on."""


class Feed:
    """Takes every n-th block, of n servers, from one of them.

    TensorFlow's client waits in C++, for ever if its server is gone, unless it is told not to. So it waits in a thread
    of its own, while this one looks after the server.
    """

    def __init__(self, number: int, open_at: Open, servers: Servers, timeout_s: float) -> None:
        """Starts with block `number`.

        Args:
            number: of the server.
            open_at: asks a server for blocks.
            servers: says where it is, and which one takes its place.
            timeout_s: a server that gives nothing for so long is taken for dead.
        """
        self._number, self._open, self._servers, self._timeout_s = number, open_at, servers, timeout_s
        self._name = f"data.service: server {number + 1} of {servers.count}"
        self._failures = 0
        self._begin(number, servers.find(number))

    def take(self, block: int) -> Any:
        """The block of that number, which must be the next one; None if there are no more.

        Raises:
            TfpipeError: no server can make it.
            tf.errors.OpError: it cannot be made, by any server; the error that it would be in this process.
        """
        while True:
            found = self._wait()
            if found is None:
                return None
            if not isinstance(found, Exception):
                if int(found.number) == block:
                    self._failures = 0
                    return found
                found = Failed(f"has given block {int(found.number)} in place of {block}")
            of_server = isinstance(found, Failed | tf.errors.OpError)
            # Nor is it a server's fault if an error comes back.
            again = isinstance(found, tf.errors.OpError) and self._failures and self._servers.lives(self._address)
            if again or not of_server:
                raise found
            self._replace(block, found)

    def close(self) -> None:
        """Lets the thread end: when the server has answered, or now if it is gone."""
        self._closed.set()
        if not self._servers.lives(self._address):
            self._source.cancel()

    def _begin(self, block: int, address: str) -> None:
        self._address, self._source = address, self._open(block, address)
        self._came: queue.Queue[Any] = queue.Queue(WAITING)
        self._closed = threading.Event()
        args = (self._source, self._came, self._closed)
        threading.Thread(target=_pump, args=args, name="service", daemon=True).start()

    def _wait(self) -> Any:
        """What comes next: a block, None at the end, or what went wrong."""
        began_s = time.monotonic()
        while True:
            try:
                return self._came.get(timeout=LOOK_S)
            except queue.Empty:
                if not self._servers.lives(self._address):
                    return Failed("is gone")
                if time.monotonic() - began_s > self._timeout_s:
                    self._servers.give_up(self._address)
                    return Failed(f"has given nothing for {self._timeout_s:g} seconds")

    def _replace(self, block: int, error: Exception) -> None:
        self._closed.set()
        self._source.cancel()
        self._failures += 1
        how = str(error) if isinstance(error, Failed) else f"has failed ({reason(error)})"
        said = f"{self._name}, at {self._address}, {how}"
        if self._failures == MOST_FAILURES:
            raise TfpipeError(
                f"{said}, as {MOST_FAILURES - 1} have before it at the same images, the {IMAGES} of block {block} of "
                "this run: these, or too little memory, may be what ends servers"
            ) from error
        address = self._servers.find(self._number)
        logger.warning("%s; goes on at %s with block %d: no image is lost or comes twice", said, address, block)
        self._begin(block, address)


def _pump(source: Source, came: queue.Queue[Any], closed: threading.Event) -> None:
    """Hands on what comes, and at last None or an error."""

    def put(found: Any) -> None:
        while not closed.is_set():
            try:
                return came.put(found, timeout=LOOK_S)
            except queue.Full:
                continue

    try:
        for found in source:
            put(found)
            if closed.is_set():
                return
        put(None)
    except Exception as error:
        put(error)
