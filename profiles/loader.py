"""What the Loader costs: python profiles/loader.py -c CONFIG [--set data.batch_size=4].

Takes the same batches in turns: by a `for` over the dataset, by tf.data's op alone, by a Loader without a time limit,
and by one with it. First one batch again and again from memory, then the config's own pipeline. Prints the process's
microseconds a batch, elapsed and of CPU, and each way against the `for`, of 1,000 microseconds: the share of a step at
1,000 batches/s.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import tensorflow as tf

from tfpipe import Config, Loader, build_dataset, load_config
from tfpipe.data import loader
from tfpipe.data.pipeline import build_batches
from tfpipe.data.runtime.cancellable import Cancellable

BASE = "for"


class Cost(NamedTuple):
    """Microseconds a batch."""

    elapsed: float
    cpu: float


def ways(config: Config, dataset: tf.data.Dataset) -> dict[str, Callable[[], Iterator[Any]]]:
    """Returns what opens an iterator, by name."""
    return {
        BASE: lambda: iter(dataset),
        "the op alone": lambda: Cancellable(dataset),
        "Loader without limit": lambda: Loader(config, positions=True, timeout_s=math.inf),
        "Loader": lambda: Loader(config, positions=True),
    }


def cost(batches: Iterator[Any], count: int) -> Cost:
    """Takes `count` batches, after as many to warm up."""
    for _ in itertools.islice(batches, count):
        pass
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in itertools.islice(batches, count):
        pass
    elapsed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return Cost(1e6 * elapsed_s / count, 1e6 * cpu_s / count)


def show(name: str, opened: dict[str, Callable[[], Iterator[Any]]], turns: int, count: int) -> None:
    """Prints the medians of `turns` turns."""
    costs = [{way: cost(begin(), count) for way, begin in opened.items()} for _ in range(turns)]
    print(f"{name}; microseconds a batch, median of {turns} turns:")
    for way in opened:
        elapsed, cpu = (median(turn[way][part] for turn in costs) for part in (0, 1))
        more = median(turn[way].cpu - turn[BASE].cpu for turn in costs)
        print(f"  {way:<21} {elapsed:5.0f} elapsed, {cpu:5.0f} of CPU; {more:+5.0f}, {more / 10:+.1f} % of 1 ms")


def main(args: argparse.Namespace) -> None:
    """Prints the costs of one batch from memory, and of the config's pipeline."""
    config = load_config(args.config, args.set)
    dataset = build_dataset(config, with_positions=True)
    batch = next(iter(dataset))
    size = "x".join(map(str, batch[0].shape))
    kept = tf.data.Dataset.from_tensors(batch).repeat()
    named = tf.data.Dataset.from_tensors(next(iter(build_batches(config)))).repeat()
    with mock.patch.object(loader, "build_batches", lambda *_, **__: named):
        show(f"a batch of {size} from memory", ways(config, kept), args.turns, args.batches)
    show(f"batches of {size} of the pipeline", ways(config, dataset), args.turns, args.batches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--batches", type=int, default=1000)
    main(parser.parse_args())
