"""Ends pipelines: those that are dropped, and those that still run when the process ends."""

import atexit
import gc
import sys
import threading
import time
import weakref
from typing import Any

import tensorflow as tf

from tfpipe.util.forks import per_process, unless_forked

# Seconds that a pipeline or its thread gets to end before its user continues, and before the process ends.
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


def close_at_exit(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset; an exit handler closes the iterators over it, and over datasets made of it.

    A pipeline works ahead. If it is inside a Python function, e.g. the native decoder, when the interpreter ends, that
    call never returns, and TensorFlow would wait for it forever.
    """
    register_exit().add(dataset)
    return dataset


@per_process
def register_exit() -> "weakref.WeakSet[tf.data.Dataset]":
    """Registers the exit handler; later calls do nothing. Returns tfpipe's datasets."""
    atexit.register(unless_forked(_close_all))
    return weakref.WeakSet()


def hold_at_exit(thing: Any) -> None:
    """Lets an exit handler call `thing.shut_down()`, before the iterators over datasets are closed.

    It has to keep daemon threads out of TensorFlow while the process ends: Python ends such a thread wherever it is,
    and within TensorFlow's C++ that aborts the process.
    """
    _register_holding().add(thing)


@per_process
def _register_holding() -> "weakref.WeakSet[Any]":
    everything = weakref.WeakSet[Any]()
    register_exit()  # handlers run in reverse order
    atexit.register(unless_forked(lambda: [thing.shut_down() for thing in everything]))
    return everything


def _close_all() -> None:
    datasets = register_exit()
    # Not isinstance(): it reads the object's __class__, which makes a lazy module load.
    candidates = [item for item in gc.get_objects() if tf.data.Iterator in type(item).__mro__]
    iterators = [iterator for iterator in candidates if _is_made_of(getattr(iterator, "_dataset", None), datasets)]
    candidates.clear()
    if iterators:
        values = [value for iterator in iterators for value in vars(iterator).values()]
        for iterator in iterators:
            vars(iterator).clear()
        end(values)
        # An error in a cycle of references holds the pipeline that raised it.
        gc.collect()
    deadline_s = time.monotonic() + EXIT_S
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _is_made_of(dataset: Any, datasets: "weakref.WeakSet[tf.data.Dataset]") -> bool:
    rest = [] if dataset is None else [dataset]
    while rest:
        dataset = rest.pop()
        if dataset in datasets:
            return True
        rest += dataset._inputs()
    return False
