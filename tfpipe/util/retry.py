"""Retries after errors of storage that may pass: up to TRIES in a row, with pauses of 1, 2, 4, 8 and 16 seconds.

Every path has its retries from here: reads of files by Python (`retried`), and pipelines (`Retry`, held by
failures.batches). Other errors, e.g. a missing file, are raised at once.
"""

import errno
import functools
import logging
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
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


def may_pass(error: Exception) -> str | None:
    """Returns the cause of a transient error; None for any other error."""
    # TensorFlow's errors have no number, but quote the system's message; so do errors that name a file.
    return next((why for number, why in MAY_PASS.items() if os.strerror(number) in str(error)), None)


class Retry:
    """The tries in a row of one piece of work."""

    def __init__(self, label: str = "", sleep: Callable[[float], object] | None = None) -> None:
        """Starts without an error; `label` begins each warning, `sleep` waits for a number of seconds."""
        self._label, self._sleep = label, sleep or time.sleep
        self._tries = 0

    def again(self, error: Exception, message: str = "") -> bool:
        """Waits before the next try, after a warning with `message`, by default the error's, and returns True.

        Returns False at once if `error` is not transient, or TRIES tries in a row have failed.
        """
        why = may_pass(error)
        if why is None or self._tries == TRIES:
            return False
        pause_s = FIRST_PAUSE_S * 2**self._tries
        self._tries += 1
        text = f"{self._label}{message or error} ({why})"
        logger.warning("%s; tries again in %g s, %d of %d", text, pause_s, self._tries, TRIES)
        self._sleep(pause_s)
        return True

    def reset(self) -> None:
        """Counts from zero again, after a success."""
        self._tries = 0


def retried(work: Callable[P, T]) -> Callable[P, T]:
    """Wraps `work`, which can be repeated: calls it again after errors that may pass."""

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        retry = Retry()
        while True:
            try:
                return work(*args, **kwargs)
            except Exception as error:
                if not retry.again(error):
                    raise

    return call
