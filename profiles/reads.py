"""What a read costs in CPU time, by TensorFlow's op and by tfpipe's: python profiles/reads.py -c CONFIG.

Each way is a dataset that only reads images, 64 at once, and XMLs next to them if there are any; they run in turns.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import tensorflow as tf

from tfpipe import World, load_config
from tfpipe.data.catalog.locate import SamplePaths
from tfpipe.data.order.stream import Stream
from tfpipe.data.pipeline import visit
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.parallelism import READS
from tfpipe.data.sources.registry import load_split
from tfpipe.native import native

IN_A_TURN, TOGETHER, IDLE_S = 50, 32, 0.2

Read = Callable[[SamplePaths], tuple[tf.Tensor, tf.Tensor]]


def by_tensorflow(image: SamplePaths) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads the files by TensorFlow's op."""
    has_xml = tf.not_equal(image.annotation_path, "")
    return tf.io.read_file(image.path), tf.cond(has_xml, lambda: tf.io.read_file(image.annotation_path), lambda: "")


def by_tfpipe(image: SamplePaths) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads the files by tfpipe's op, in C."""
    return native().read(image.path), native().read(image.annotation_path)


def main(args: argparse.Namespace) -> None:
    """Prints a line for each way."""
    config = load_config(args.config)
    split = load_split(config.data, "train", World())
    images = visit(split, Stream.start(1))
    ways: dict[str, Read] = {"tf.io.read_file": by_tensorflow, "tfpipe": by_tfpipe}
    running = {name: Cancellable(reading(images, read)) for name, read in ways.items()}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.turns + 1):
        for name, elements in running.items():
            cost = turn(elements)
            costs[name] += [cost] if number else []
    for name, cost in costs.items():
        print(f"{name:16} {median(cost):5.1f} us of CPU time an image ({min(cost):.1f} to {max(cost):.1f})", flush=True)


def reading(images: tf.data.Dataset, read: Read) -> tf.data.Dataset:
    """Returns a dataset of the files of TOGETHER images; it has two threads besides those that read."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    options.experimental_optimization.inject_prefetch = False
    files = images.map(read, READS, use_unbounded_threadpool=True)
    return files.batch(TOGETHER).with_options(options)


def turn(elements: Iterator[Any]) -> float:
    """Takes some elements; returns microseconds of the process' CPU time for each image."""
    time.sleep(IDLE_S)  # until the other ways have read ahead
    begin_s = time.process_time()
    for _ in range(IN_A_TURN):
        next(elements)
    return (time.process_time() - begin_s) / (IN_A_TURN * TOGETHER) * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", required=True, type=Path, help="config whose training files are read")
    parser.add_argument("--turns", type=int, default=9, help="[%(default)s]")
    main(parser.parse_args())
