"""Calls at once, and the threads that they take."""

import threading
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.data.runtime.parallelism import map_in_threads

CALLS = 16


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_each_call_that_waits_has_one_thread_and_the_order_stays() -> None:
    """All calls wait for each other: fewer at once would never get on, and a second thread of each would show."""
    barrier, seen = threading.Barrier(CALLS, timeout=60), []

    def wait(number: np.ndarray) -> np.ndarray:
        if barrier.wait() == 0:
            seen.append(threads())
        return number

    def work(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        done = tf.numpy_function(wait, [number], tf.int64, stateful=False)
        return tf.ensure_shape(done, []), tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])

    numbers = tf.data.Dataset.range(2 * CALLS)
    list(numbers.map(lambda number: number, 2))  # TensorFlow's own threads
    before = threads()
    both = [tuple(map(int, pair)) for pair in map_in_threads(numbers, work, CALLS, "wait").as_numpy_iterator()]
    assert both == [(number, number) for number in range(2 * CALLS)]
    assert CALLS <= max(seen) - before < 2 * CALLS
