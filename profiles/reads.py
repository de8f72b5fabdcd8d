"""What a read costs in CPU time, by Dataset.map and by tfpipe's way: python profiles/reads.py FILELIST.

Each way is a dataset that only reads, 64 files at once; after a start, they run in turns.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import tensorflow as tf

from tfpipe.data.runtime.parallelism import READS, map_in_threads

IN_A_TURN, TOGETHER = 200, 32


def main(args: argparse.Namespace) -> None:
    """Prints a line for each way."""
    paths = tf.data.Dataset.from_tensor_slices(Path(args.filelist).read_text().split()[: args.files]).repeat()
    ways = {
        "Dataset.map": paths.map(tf.io.read_file, READS, use_unbounded_threadpool=True),
        "map_in_threads": map_in_threads(paths, tf.io.read_file, READS, "read"),
    }
    running = {name: iter(dataset.batch(TOGETHER).with_options(alone())) for name, dataset in ways.items()}
    for elements in running.values():
        turn(elements)
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.turns):
        for name, elements in running.items():
            costs[name].append(turn(elements))
    for name, cost in costs.items():
        print(f"{name:15} {median(cost):5.1f} us of CPU time a read", flush=True)


def alone() -> tf.data.Options:
    """Returns options of a dataset that has two threads beside those that read."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    return options


def turn(elements: Iterator[Any]) -> float:
    """Takes some elements; returns microseconds of the process' CPU time for each file read."""
    begin_s = time.process_time()
    for _ in range(IN_A_TURN):
        next(elements)
    return (time.process_time() - begin_s) / (IN_A_TURN * TOGETHER) * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("filelist", help="text file with paths of images, one per line")
    parser.add_argument(
        "--files", type=int, default=500, help="how many of them to read, again and again [%(default)s]"
    )
    parser.add_argument("--turns", type=int, default=9, help="[%(default)s]")
    main(parser.parse_args())
