"""An asyncio event loop in its own thread, called from other threads."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
THREADS = 64


class Ended(Exception):
    """The error of work that was cancelled because the loop is closed."""


class Loop:
    """An event loop whose thread starts at the first call of `run`."""

    def __init__(self, last: Callable[[], Awaitable[None]]) -> None:
        """Stores `last`, which runs in the loop before it closes."""
        self._last = last
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="tfpipe-fetch", daemon=True)
        self._closed = False

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `work()` in the loop and returns its result; the calling thread waits.

        Raises Ended if the loop is closed, or was closed meanwhile.
        """
        with self._lock:
            if self._closed:
                raise Ended
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except asyncio.CancelledError as error:
            raise Ended from error
        except BaseException as error:
            if future.cancelled():
                raise Ended from error
            raise

    def close(self) -> None:
        """Cancels all pending work and ends the thread."""
        with self._lock:
            loop, self._closed = None if self._closed else self._loop, True
        if loop is not None:
            # Queued after all work submitted before, so that no caller waits forever.
            loop.call_soon_threadsafe(loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _work(self) -> None:
        loop = self._loop
        assert loop is not None, "run() makes it, then starts this thread"
        asyncio.set_event_loop(loop)
        # For file systems without asyncio; each thread starts when it is needed.
        loop.set_default_executor(ThreadPoolExecutor(THREADS, "tfpipe-fetch-sync"))
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(self._last())
        loop.close()
