"""Runs Python work that holds the GIL in several processes."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

# Tasks in flight per process.
AHEAD = 4

A = TypeVar("A")
B = TypeVar("B")


def parallel(work: Callable[[A], B], tasks: Iterable[A], processes: int, preload: str = __name__) -> Iterator[B]:
    """Yields the results of `work` in order; takes new tasks only as earlier ones finish.

    `work`, the tasks and the results are pickled; with one process, everything runs in this one. The module `preload`
    is imported once, before processes are forked. Raises BrokenProcessPool if a process was killed.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    # A fork of this process would copy locks that MPI's and TensorFlow's threads hold.
    context = get_context("forkserver")
    context.set_forkserver_preload([preload])
    waiting: deque[Future[B]] = deque()
    with ProcessPoolExecutor(processes, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
