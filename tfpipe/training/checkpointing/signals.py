"""Signals that stop a run: after the first it finishes the step and saves, a later one ends it at once."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

from tfpipe.errors import Stopped
from tfpipe.util.process import drop_output

logger = logging.getLogger(__name__)

# Sent by job schedulers before the walltime is over, by Ctrl-C, and when a terminal is closed, e.g. by a lost ssh.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
# Within these seconds the same signal again is the same wish: torchrun, srun and others forward to their processes what
# a scheduler or a terminal sends to all processes of the job.
FORWARDED_S = 5.0


class Stop:
    """The request to stop this process: true after a signal, which it holds."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._asked_s = 0.0

    def __bool__(self) -> bool:
        return self.signal is not None

    def ask(self, received: signal.Signals) -> None:
        """Stores the first signal; a later one ends the process, unless it is the same within FORWARDED_S."""
        now_s = time.monotonic()
        if self.signal is received and now_s < self._asked_s + FORWARDED_S:
            return
        if self.signal is not None:
            os.write(2, f"tfpipe: {received.name}: exits at once, nothing saved since the last checkpoint\n".encode())
            os._exit(128 + received)
        self.signal, self._asked_s = received, now_s
        # INFO is shown on rank 0 only, so that the message appears once.
        message = "%s: finishes the step and saves; the same signal after %.0f s, or another, ends the run at once"
        logger.info(message, received.name, FORWARDED_S)


def end_on_early_signal() -> None:
    """Lets SIGUSR1, by which schedulers announce the end of a job, end this process by name while no step is trained.

    Its default would kill it without a word. The exit code is that of a run that was told to stop. In other threads
    than the main one, where Python allows no handlers, and where one is set already, it does nothing.
    """

    def end(*_: object) -> None:
        os.write(2, b"tfpipe: SIGUSR1: no step is being trained, exits at once; --resume auto continues the run\n")
        os._exit(Stopped.exit_code)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, end)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catches SIGNALS inside `with`; in the main thread only, since Python allows handlers nowhere else.

    SIGHUP stays ignored if it is, as under nohup; after one, what is written to the closed terminal is dropped. A
    thread reads the signals: a step that waits for stalled storage reaches no bytecode, after which Python runs
    handlers.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    ours, theirs = socket.socketpair()
    theirs.settimeout(0)

    terminals = [number for number in (1, 2) if os.isatty(number)]

    def listen() -> None:
        while received := ours.recv(1):
            if received[0] == signal.SIGHUP:
                drop_output(*terminals)
            if received[0] in SIGNALS:
                stop.ask(signal.Signals(received[0]))

    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    caught = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = contextlib.ExitStack()
    for number in caught:
        before.callback(signal.signal, number, signal.signal(number, lambda *_: None))
    before.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False))
    os.register_at_fork(after_in_child=before.close)  # what ends a child is no wish to stop this process
    try:
        yield stop
    finally:
        before.close()
        theirs.close()
        listener.join()
        ours.close()
