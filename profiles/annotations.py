"""How fast XMLs are parsed in the pipeline, by lxml in numpy_function: python profiles/annotations.py LIST.

The same XMLs, in memory, in turns. Some at a call is what the pipeline does; one at a call is what a map over images
would do.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import tensorflow as tf

from tfpipe import World
from tfpipe.config import DataConfig
from tfpipe.data.annotations.targets import parse_targets
from tfpipe.data.images.decode import NATIVE_IMAGES
from tfpipe.data.sources.registry import load_catalog
from tfpipe.util.files import read_whole

XMLS = 2048


def main(args: argparse.Namespace) -> None:
    """Prints XMLs a second, and the ratio to one at a call, turn by turn."""
    catalog = load_catalog(DataConfig(train_filelist=args.list, annotations="xml", crop="boxes"), "train", World())
    paths = [path for path in map(catalog.annotation, range(len(catalog))) if path][:XMLS]
    source = tf.data.Dataset.from_tensor_slices(([read_whole(path) for path in paths], paths)).repeat()

    def parse(texts: tf.Tensor, paths: tf.Tensor) -> Any:
        count = tf.size(texts)
        return parse_targets(texts, paths, tf.zeros(count, tf.int32), tf.fill([count, 2], 500), catalog.classes)

    ways = {"some at a call": NATIVE_IMAGES, "one at a call": 1}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.turns):
        for name, some in ways.items():
            # Made anew for each turn, since it would go on filling its buffers in the others'.
            parsed = source.batch(some).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            rates[name].append(rate(iter(parsed.shard(XMLS // some, 0)), args.seconds))
    base = rates["one at a call"]
    print("| | XMLs a second | of one at a call |\n|---|---|---|")
    for name, found in rates.items():
        ratio = median(one / other for one, other in zip(found, base, strict=True))
        print(f"| {name} | {median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f}) | {ratio:.1f} |")


def rate(iterator: Iterator[Any], seconds: float) -> float:
    """XMLs a second; each element that arrives is the last of XMLS."""
    next(iterator)
    next(iterator)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        next(iterator)
        done += XMLS
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=lambda path: Path(path).absolute(), help="filelist of images that have XMLs")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    main(parser.parse_args())
