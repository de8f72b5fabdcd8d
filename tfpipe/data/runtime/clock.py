"""The time of day, and pauses, in graph."""

import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.util.tensorflow_api import is_op_determinism_enabled

# Environment variable: milliseconds by which every image is delayed, unless it comes from `data.cache`.
DELAY_MS = "TFPIPE_STORAGE_DELAY_MS"


def now_s(after: Any) -> tf.Tensor:
    """Returns the seconds since 1970 when all tensors of `after` are computed: float64 [], precise to microseconds.

    With deterministic ops enabled tf.timestamp refuses to run; Python's clock replaces it. That takes about 40
    microseconds a call, a few of them with the GIL.
    """
    after = tf.nest.flatten(after)
    with tf.control_dependencies(after):
        if not is_op_determinism_enabled():
            return tf.timestamp()
        # A stateful op would make tf.data run the whole pipeline serially; an op without input would run only once.
        first = tf.reshape(after[-1], [-1])[:1]
        time_s = tf.numpy_function(lambda _: np.float64(time.time()), [first], tf.float64, stateful=False)
        return tf.ensure_shape(time_s, [])


def simulated_delay_s() -> float:
    """Returns the delay of an image's read, in seconds."""
    return float(os.environ.get(DELAY_MS) or 0) / 1000


def simulate_latency(path: tf.Tensor) -> tf.Tensor:
    """Simulates slow storage: returns `path` (string []) after a sleep without the GIL, as in a read.

    Without the variable it is `path` itself. The delay calls Python once per image, some 40 microseconds more.
    """
    if not (delay_s := simulated_delay_s()):
        return path

    def wait(path: bytes) -> bytes:
        time.sleep(delay_s)
        return path

    return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string, stateful=False), [])
