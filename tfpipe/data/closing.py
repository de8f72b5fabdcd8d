"""Pipelines still running when the process ends."""

import atexit
import functools
import gc

import tensorflow as tf


@functools.cache
def close_at_exit() -> None:
    """Has all iterators closed before the interpreter is.

    A pipeline works ahead. One that is in a Python function, as the native decoder is, when the interpreter ends never
    comes back from it, and TensorFlow would wait for it for ever.
    """
    atexit.register(_close_all)


def _close_all() -> None:
    for each in gc.get_objects():
        # Not isinstance(): it asks the object, which may be one that loads a module when asked.
        if tf.data.Iterator in type(each).__mro__:
            vars(each).clear()
