"""Work shared among processes, for what holds the GIL."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

# Tasks under way per process.
AHEAD = 4

A = TypeVar("A")
B = TypeVar("B")


def parallel(work: Callable[[A], B], tasks: Iterable[A], processes: int, preload: str = __name__) -> Iterator[B]:
    """The results of `work`, in order; takes tasks only as fast as they are done.

    Args:
        work: what each process calls; pickled, as its tasks and results are.
        tasks: what it is called with, one after the other.
        processes: how many; with 1, this one does it all.
        preload: the module that each process is to have from the start.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    # A fork would copy MPI's and TensorFlow's threads' locks.
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
