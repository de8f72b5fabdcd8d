"""Why there are more decode calls than threads: python profiles/decode_calls.py [--turns 3].

Batches keep their order, so a thread whose call ends before an earlier one's has nothing to do unless another call
waits. Calls sleep here, as long as 32 decoded images take, so that 32 threads need no 32 CPUs. Prints the share of the
threads' time that calls take, for 1, 9/8, 5/4 and 2 calls a thread.
"""

import argparse
import os
import random
import time
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

# Mean time of a call, and its standard deviation: that of 32 images from ImageNet's distribution of sizes.
CALL_S, DEVIATION = 0.05, 0.11


def sleeping(naps_s: list[float], threads: int, calls: int) -> tf.data.Dataset:
    """A pipeline whose calls sleep as long as `naps_s` says, up to `calls` at once in a pool of `threads`."""

    def nap(seconds: np.ndarray) -> np.ndarray:
        time.sleep(float(seconds))
        return seconds

    options = tf.data.Options()
    options.threading.private_threadpool_size = options.autotune.cpu_budget = threads
    source = tf.data.Dataset.from_tensor_slices(np.array(naps_s))
    mapped = source.map(lambda nap_s: tf.numpy_function(nap, [nap_s], tf.float64), num_parallel_calls=calls)
    return mapped.with_options(options)


def busy(threads: int, calls: int, each: int) -> float:
    """Share of the threads' time in which they are inside a call, 0 to 1; `each` is the number of calls a thread."""
    draw = random.Random(0)
    naps_s = [CALL_S * max(0.2, draw.gauss(1, DEVIATION)) for _ in range(each * threads)]
    elements = iter(sleeping(naps_s, threads, calls))
    first = 2 * threads
    for _ in range(first):
        next(elements)
    start = time.perf_counter()
    for _ in elements:
        pass
    return sum(naps_s[first:]) / threads / (time.perf_counter() - start)


def main(args: argparse.Namespace) -> None:
    """Prints a row for each number of threads, medians over the turns."""
    print("| threads | as many calls | 1/8 more | 1/4 more | twice as many |\n|---|---|---|---|---|")
    for threads in args.threads:
        numbers = (threads, threads + max(1, threads // 8), threads + max(1, threads // 4), 2 * threads)
        turns = [[busy(threads, calls, args.calls) for calls in numbers] for _ in range(args.turns)]
        shares = [f"{median(column):.2f}" for column in zip(*turns, strict=True)]
        print(f"| {threads} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 8, 16, 32], help="[%(default)s]")
    parser.add_argument("--calls", type=int, default=60, help="of a thread, at least 3 [%(default)s]")
    parser.add_argument("--turns", type=int, default=3)
    main(parser.parse_args())
