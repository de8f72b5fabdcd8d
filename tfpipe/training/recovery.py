"""Recovery from transient storage errors: rebuilds the rank's pipeline from the next crop on, up to TRIES in a row."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.runtime.op_errors import reason
from tfpipe.distributed import World

logger = logging.getLogger(__name__)

# Errors of a file system or network in trouble; a bad or missing file raises others.
MAY_PASS = {
    errno.EIO: "the disk or the file server failed",
    errno.ESTALE: "the file server has lost the file's handle, as after a restart",
    errno.ETIMEDOUT: "the file server did not answer",
    errno.EREMOTEIO: "the file server failed",
    errno.ECONNRESET: "the file server ended the connection",
    errno.EAGAIN: "the system was short of something",
    # Before EMFILE, whose message is the beginning of this one and would match first.
    errno.ENFILE: "this host has too many files open",
    errno.EMFILE: "this process has too many files open: ulimit -n",
}
TRIES = 5
FIRST_PAUSE_S = 1.0


class Recovery:
    """Continues a rank's batches after a transient error; meanwhile the other ranks wait in the allreduce."""

    def __init__(
        self,
        build: Callable[[Stream], tf.data.Dataset],
        stream: Stream,
        world: World,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Starts without an error.

        `build` builds the pipeline from a point of the stream on; `stream` is where the first pipeline began; `sleep`
        waits for a number of seconds.
        """
        self._build, self._stream, self._world, self._sleep = build, stream, world, sleep
        self._iterator: Iterator[Any] | None = None
        self._tries = 0

    def take(self, iterator: Iterator[Any], take: Callable[[Iterator[Any]], Any], reached: tf.Tensor | None) -> Any:
        """Returns the next batch.

        `iterator` holds the first pipeline's batches; after its first error a rebuilt pipeline replaces it. `take`
        takes the next batch of an iterator; `reached` (int64 [batch, 2]) are the positions of the last batch received,
        None before the first. Raises tf.errors.OpError if the error is not transient, or TRIES attempts in a row have
        failed.
        """
        while True:
            try:
                batch = take(self._iterator or iterator)
            except tf.errors.OpError as error:
                why = may_pass(error)
                if why is None or self._tries == TRIES:
                    raise
                self._again(error, why, reached)
            else:
                self._tries = 0
                return batch

    def _again(self, error: tf.errors.OpError, why: str, reached: tf.Tensor | None) -> None:
        pause_s = FIRST_PAUSE_S * 2**self._tries
        self._tries += 1
        logger.warning(
            "rank %d: %s (%s); tries again in %g s, %d of %d",
            self._world.rank,
            reason(error),
            why,
            pause_s,
            self._tries,
            TRIES,
        )
        self._sleep(pause_s)
        stream = self._stream
        if reached is not None:
            stream = stream.moved(self._world.rank, Cursor.after(reached[-1]))
        self._iterator = iter(self._build(stream))


def may_pass(error: tf.errors.OpError) -> str | None:
    """Returns the cause of a transient error; None for any other error."""
    # TensorFlow's error classes do not tell, but its messages quote the system's.
    return next((why for number, why in MAY_PASS.items() if os.strerror(number) in error.message), None)
