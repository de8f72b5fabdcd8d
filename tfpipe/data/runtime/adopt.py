"""Gives arrays to TensorFlow without a copy."""

import numpy as np
import tensorflow as tf


def adopt(*arrays: np.ndarray) -> list[tf.Tensor]:
    """Returns tensors that share the memory of `arrays`, which nobody may change from now on.

    An array whose memory does not start at a multiple of 64 bytes, or is not contiguous, is copied. The tensors are
    eager and on the CPU, where tf.data runs: a graph under construction holds them by reference.
    """
    types = [tf.as_dtype(array.dtype) for array in arrays]
    # tf.constant copies. DLPack refuses read-only arrays, and writable mappings count as memory where the system does
    # not overcommit. What numpy_function returns within a graph is taken as it is.
    with tf.init_scope(), tf.device("CPU"):
        take = tf.function(lambda: tf.numpy_function(lambda: arrays, [], types), autograph=False)
        return list(take())
