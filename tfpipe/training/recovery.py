"""Errors of storage that may pass: the rank's pipeline is built anew from the very next crop, some times in a row."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfpipe.data.reasons import reason
from tfpipe.data.stream import Frontier, Stream
from tfpipe.distributed import World

logger = logging.getLogger(__name__)

# What a file system says when it, or the network, is in trouble; of a file that is bad or gone it says something else.
MAY_PASS = {
    errno.EIO: "the disk or the file server failed",
    errno.ESTALE: "the file server has lost the file's handle, as after a restart",
    errno.ETIMEDOUT: "the file server did not answer",
    errno.EREMOTEIO: "the file server failed",
    errno.ECONNRESET: "the file server ended the connection",
    errno.EAGAIN: "the system was short of something",
    # Before the next, whose words its own begin with.
    errno.ENFILE: "this host has too many files open",
    errno.EMFILE: "this process has too many files open: ulimit -n",
}
TRIES = 5
FIRST_PAUSE_S = 1.0


class Recovery:
    """Makes a rank's batches go on after an error that may pass; the other ranks wait in the allreduce meanwhile."""

    def __init__(
        self,
        build: Callable[[Stream], tf.data.Dataset],
        stream: Stream,
        world: World,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Sets out from what the first batches did.

        Args:
            build: makes the batches from some point of the stream on.
            stream: where the first ones began.
            world: which rank this is.
            sleep: waits for so many seconds.
        """
        self._build, self._stream, self._world, self._sleep = build, stream, world, sleep
        self._iterator: Iterator[Any] | None = None
        self._tries = 0

    def take(self, iterator: Iterator[Any], take: Callable[[Iterator[Any]], Any], reached: tf.Tensor | None) -> Any:
        """The next batch.

        Args:
            iterator: of the first batches; once it has failed, another one takes its place.
            take: takes the next of an iterator.
            reached: int64 [batch, 2], the positions of the last batch that came; None if none did.

        Raises:
            tf.errors.OpError: of another kind, or the last of TRIES in a row.
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
            frontiers = list(stream.frontiers)
            frontiers[self._world.rank] = Frontier.after(reached[-1])
            stream = stream.at(frontiers)
        self._iterator = iter(self._build(stream))


def may_pass(error: tf.errors.OpError) -> str | None:
    """What happened, if it may not happen again; None of any other error."""
    # TensorFlow's kinds of errors do not tell, but it quotes what the system said.
    return next((why for number, why in MAY_PASS.items() if os.strerror(number) in error.message), None)
