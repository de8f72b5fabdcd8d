"""Ends pipelines: those that are dropped, and those that still run when the process ends."""

import atexit
import functools
import gc
import sys
import threading
import time
from typing import Any

import tensorflow as tf

# Seconds that a pipeline or its thread gets to end before its user goes on, and before the process ends.
END_S, EXIT_S = 0.5, 10.0
NAME = "end of a pipeline"


def end(iterators: list[Any]) -> None:
    """Drops the last references to dataset iterators, which the list gives up, and waits for their end for END_S.

    TensorFlow 2.21 ends a pipeline's reads and decodes at once, but sometimes only after up to a minute the thread that
    tunes it: Model::OptimizeLoop is woken before CancellationManager says that it is cancelled, and sleeps on. So the
    references are dropped in a thread, a daemon.
    """
    if sys.is_finalizing():  # no thread starts any more
        return
    thread = threading.Thread(target=iterators.clear, name=NAME, daemon=True)
    thread.start()
    thread.join(END_S)


@functools.cache
def close_at_exit() -> None:
    """Registers an exit handler that closes all dataset iterators; later calls do nothing.

    A pipeline works ahead. If it is inside a Python function, e.g. the native decoder, when the interpreter ends, that
    call never returns, and TensorFlow would wait for it forever.
    """
    atexit.register(_close_all)


def _close_all() -> None:
    # Not isinstance(): it reads the object's __class__, which makes a lazy module load.
    iterators = [found for found in gc.get_objects() if tf.data.Iterator in type(found).__mro__]
    if iterators:
        end([value for iterator in iterators for value in _taken(vars(iterator))])
        # An error in a cycle of references holds the pipeline that raised it.
        gc.collect()
    deadline_s = time.monotonic() + EXIT_S
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _taken(values: dict[str, Any]) -> list[Any]:
    """Returns the values of a dictionary, which it gives up."""
    taken = list(values.values())
    values.clear()
    return taken
