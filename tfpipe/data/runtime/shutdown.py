"""Closes pipelines that still run when the process ends."""

import atexit
import functools
import gc

import tensorflow as tf


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
    for iterator in iterators:
        vars(iterator).clear()
    if iterators:
        # An error in a cycle of references holds the pipeline that raised it.
        gc.collect()
