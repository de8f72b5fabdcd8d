"""Runs Python work that holds the GIL in several processes, and work of any pool in order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import parent_process
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, TypeVar

from tfpipe.util.process import hidden_main

# Tasks in flight per process.
TASKS_PER_PROCESS = 4

A = TypeVar("A")
B = TypeVar("B")


def parallel(work: Callable[[A], B], tasks: Iterable[A], processes: int, preload: str = __name__) -> Iterator[B]:
    """Yields the results of `work` in order; takes new tasks only as earlier ones finish.

    `work`, the tasks and the results are pickled; with one process, everything runs in this one. The module `preload`
    is imported once, before processes are forked; the user's script is not. The processes end with this one, even if it
    is killed. Raises BrokenProcessPool if one of them was killed.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    # A fork of this process would copy locks that MPI's and TensorFlow's threads hold.
    context = _Context()
    context.set_forkserver_preload([preload])
    with ProcessPoolExecutor(processes, context, _start_worker) as pool:
        yield from in_order(pool, work, tasks, TASKS_PER_PROCESS * processes)


def in_order(pool: Executor, work: Callable[[A], B], tasks: Iterable[A], ahead: int) -> Iterator[B]:
    """Yields the results of `work` in order, with `ahead` tasks in flight: a list of millions is never all queued."""
    waiting: deque[Future[B]] = deque()
    for task in tasks:
        waiting.append(pool.submit(work, task))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class _Process(ForkServerProcess):
    """A process that does not import the user's script, which without a main guard would run again in it."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with hidden_main():
            return ForkServerProcess._Popen(process_obj)


class _Context(ForkServerContext):
    Process = _Process


def _start_worker() -> None:
    """Leaves Ctrl-C to the parent, and ends this process when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None, "the pool has started this process"

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, name="parent", daemon=True).start()
