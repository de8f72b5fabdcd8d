"""Simulates slow storage, for tests and for the example of a serial against a parallel pipeline."""

import os
import time

import tensorflow as tf

# Environment variable: milliseconds by which every image is delayed, unless it comes from `data.cache`.
DELAY_MS = "TFPIPE_STORAGE_DELAY_MS"


def simulated_delay_s() -> float:
    """Returns the delay of an image's read, in seconds."""
    return float(os.environ.get(DELAY_MS, 0)) / 1000


def simulate_latency(path: tf.Tensor) -> tf.Tensor:
    """Returns `path` (string []) after the delay, in which the thread sleeps without the GIL, as in a read.

    Without the variable it is `path` itself. The delay calls Python once per image, some 40 microseconds more.
    """
    if not (delay_s := simulated_delay_s()):
        return path

    def wait(path: bytes) -> bytes:
        time.sleep(delay_s)
        return path

    return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string, stateful=False), [])
