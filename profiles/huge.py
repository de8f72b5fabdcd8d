"""Measures how long batches are waited for if 1 % of the images are huge: python profiles/huge.py [--threads 8].

Batches keep their order, so a call that decodes a huge image holds up the calls after it once as many have begun as may
be open. Calls sleep here, in tf.data's own map, as long as their 32 images take to decode, so that 8 threads need no 8
CPUs: 1.1 ms an image, and 41 ms for one of 12 megapixels. The user takes a batch of 128 at the mean rate. Prints
the waits for 1 1/4, 2, 3 and 4 open calls a thread.
"""

import argparse
import os
import random
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from decode_calls import sleeping

IMAGES_A_CALL, CALLS_A_BATCH, PREFETCHED, LOAD = 32, 4, 2, 1.0
IMAGE_S, HUGE_S, HUGE = 0.0011, 0.041, 0.01
FIRST = 20  # batches that fill the buffers


def call_s(draw: random.Random) -> float:
    """Returns the seconds of a call."""
    return sum(
        HUGE_S * draw.uniform(0.7, 1.3) if draw.random() < HUGE else IMAGE_S * draw.lognormvariate(-0.08, 0.4)
        for _ in range(IMAGES_A_CALL)
    )


def waits_s(threads: int, calls: int, batches: int) -> np.ndarray:
    """Returns the seconds that each batch was waited for, with `calls` calls open."""
    draw = random.Random(0)
    naps_s = [call_s(draw) for _ in range(CALLS_A_BATCH * (batches + FIRST))]
    step_s = sum(naps_s) / (batches + FIRST) / threads / LOAD
    elements = iter(sleeping(naps_s, threads, calls).batch(CALLS_A_BATCH).prefetch(PREFETCHED))
    waits = []
    for _ in range(batches + FIRST):
        began_s = time.perf_counter()
        next(elements)
        waits.append(time.perf_counter() - began_s)
        time.sleep(step_s)
    return np.array(waits[FIRST:])


def main(args: argparse.Namespace) -> None:
    """Prints a row for each number of open calls."""
    print("| open calls | p50, ms | p99, ms | longest, ms |\n|---|---|---|---|")
    for calls in (args.threads + max(1, args.threads // 4), *(args.threads * each for each in (2, 3, 4))):
        waits_ms = 1000 * waits_s(args.threads, calls, args.batches)
        p50, p99 = np.percentile(waits_ms, [50, 99])
        print(f"| {calls} | {p50:.1f} | {p99:.1f} | {waits_ms.max():.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batches", type=int, default=1000)
    main(parser.parse_args())
