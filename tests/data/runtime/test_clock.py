"""The clock inside a graph."""

import pytest

from tests.support.commands import WARM, run

# Reads it twice in a graph, and in each element of a data set that is prepared ahead of its use.
READ = """
import sys, threading, time
import tensorflow as tf
from tfpipe.data.runtime.clock import now_s
from tfpipe.data.runtime.shutdown import close_at_exit
if sys.argv[1] == "deterministic":
    tf.config.experimental.enable_op_determinism()
def wait(since):
    while time.time() < since + 1e-5:
        pass
    return since
@tf.function
def twice(value):
    first = now_s([value])
    return first, now_s([tf.numpy_function(wait, [first], tf.float64)])
begin = time.time()
times = []
for _ in range(3):
    times += [float(each) for each in twice(tf.constant(1))]
    wait(times[-1])
assert begin < times[0] and times == sorted(set(times)) and times[-1] < time.time(), times
second = threading.Event()
def tell(number, ready):
    if number == 2:
        second.set()
    return ready
def prepare(number):
    return tf.numpy_function(tell, [number, now_s([number])], tf.float64, stateful=False)
numbers = tf.data.Dataset.range(9).map(lambda number: number + 1, num_parallel_calls=2)
ahead = iter(close_at_exit(numbers.map(prepare).prefetch(2)))
next(ahead)
assert second.wait(120), "nothing was prepared while no batch was asked for"
asked = time.time()
assert float(next(ahead)) < asked
"""


@pytest.mark.parametrize("how", ["as it is", "deterministic"])
def test_time_goes_on_also_where_operations_are_deterministic(how: str) -> None:
    done = run(*WARM, "-c", READ, how)
    assert done.code == 0, done.err
