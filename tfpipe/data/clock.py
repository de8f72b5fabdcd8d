"""The time of day, inside a graph."""

import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled


def now_s(after: Sequence[tf.Tensor]) -> tf.Tensor:
    """float64 []: seconds since 1970, to microseconds, once all of `after` is there.

    Where operations must be deterministic, tf.timestamp refuses to run; Python's clock, which needs the GIL for some
    microseconds a batch, takes its place there, at some 40 microseconds a call.
    """
    with tf.control_dependencies(after):
        if not is_op_determinism_enabled():
            return tf.timestamp()
        # Were it stateful, tf.data would make the whole pipeline serial; with no input, it would be read only once.
        some = tf.reshape(after[-1], [-1])[:1]
        time_s = tf.numpy_function(lambda _: np.float64(time.time()), [some], tf.float64, stateful=False)
        return tf.ensure_shape(time_s, [])
