"""The clock inside a graph."""

import subprocess
import sys

import pytest

# Reads it twice in a graph, and in each element of a data set that is prepared ahead of its use.
READ = """
import sys, time
import tensorflow as tf
from tfpipe.data.clock import now_s
from tfpipe.data.closing import close_at_exit
close_at_exit()
if sys.argv[1] == "deterministic":
    tf.config.experimental.enable_op_determinism()
@tf.function
def twice(value):
    first = now_s([value])
    return first, now_s([first])
begin = time.time()
twice(tf.constant(1))
times = [float(each) for _ in range(3) for each in twice(tf.constant(1))]
assert begin <= times[0] and times == sorted(times) and len(set(times)) > 3 and times[-1] <= time.time(), times
numbers = tf.data.Dataset.range(9).map(lambda value: value + 1, num_parallel_calls=2)
ahead = iter(numbers.map(lambda value: now_s([value])).prefetch(2))
next(ahead)
time.sleep(0.5)
assert time.time() - float(next(ahead)) > 0.3, "nothing was prepared while nobody asked"
"""


@pytest.mark.parametrize("how", ["as it is", "deterministic"])
def test_time_goes_on_also_where_operations_are_deterministic(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", READ, how], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
