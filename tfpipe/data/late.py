"""Slow storage, pretended, to see what it does to training."""

import time

import tensorflow as tf


def late(path: tf.Tensor, delay_ms: float) -> tf.Tensor:
    """`path` (string), after `delay_ms` in which this thread, as in a read, waits without a CPU and without the GIL.

    Python is called for each image, some 40 microseconds beside the delay: for experiments alone.
    """

    def wait(path: bytes) -> bytes:
        time.sleep(delay_ms / 1000)
        return path

    return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string, stateful=False), [])
