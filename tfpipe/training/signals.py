"""Signals that ask a run to stop: the first lets it finish the step and save, the second ends it at once."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator

logger = logging.getLogger(__name__)

# What job schedulers send before the walltime is over, and what Ctrl-C sends.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Stop:
    """Whether this process has been asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def ask(self, received: signal.Signals) -> None:
        """Takes note of a signal; the second ends the process."""
        if self.signal is not None:
            os.write(2, f"tfpipe: {received.name}: exits at once, nothing saved since the last checkpoint\n".encode())
            os._exit(128 + received)
        self.signal = received
        # Of as many ranks as there are, the first alone says so: INFO is its level.
        logger.info("%s: finishes the step and saves; the next signal ends the run at once", received.name)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catches SIGNALS while it lasts; in the main thread only, as Python has it.

    Python runs handlers only between two of its own instructions, which a step waiting for stalled storage or for a
    rank that is gone never reaches. So a thread of its own listens.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def listen() -> None:
        while received := ours.recv(1):
            if received[0] in SIGNALS:
                stop.ask(signal.Signals(received[0]))

    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    before = {each: signal.signal(each, lambda *_: None) for each in SIGNALS}
    wakeup_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for each, handler in before.items():
            signal.signal(each, handler)
        theirs.close()
        listener.join()
        ours.close()
