"""Simulates slow storage, to measure its effect on training."""

import time

import tensorflow as tf


def simulate_latency(path: tf.Tensor, delay_ms: float) -> tf.Tensor:
    """Returns `path` (string []) after `delay_ms`, in which the thread sleeps without the GIL, as in a read.

    For experiments only: it calls Python once per image, some 40 microseconds in addition to the delay.
    """

    def wait(path: bytes) -> bytes:
        time.sleep(delay_ms / 1000)
        return path

    return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string, stateful=False), [])
