"""How fast XMLs are parsed in the pipeline, against lxml alone: python profiles/annotations.py LIST.

The same XMLs, in memory, in turns. 32 at a call is what the pipeline does; one at a call is what a map over images
would do. lxml alone is a loop of `etree.fromstring` and `findall` in one thread, without tf.data, checks or arrays. By
CPU time, which other processes disturb less, and by the clock.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tensorflow as tf
from lxml import etree

from tfpipe import World
from tfpipe.config import DataConfig
from tfpipe.data.annotations.targets import target_parser
from tfpipe.data.annotations.voc import EDGES
from tfpipe.data.images.decode import NATIVE_IMAGES
from tfpipe.data.runtime.stage import stage
from tfpipe.data.sources.registry import load_split
from tfpipe.util.files import read_whole

ALONE = "lxml alone, one thread"


class Rate(NamedTuple):
    """XMLs a second, by the clock and by the CPU time of all threads."""

    wall: float
    cpu: float


def main(args: argparse.Namespace) -> None:
    """Prints XMLs a second, and the ratios to lxml alone, turn by turn."""
    config = DataConfig(train_filelist=args.list, annotations="xml", crop="boxes")
    catalog = load_split(config, "train", World()).catalog
    paths = [path for path in map(catalog.annotation, range(len(catalog))) if path][: args.xmls]
    texts = [read_whole(path) for path in paths]
    source = tf.data.Dataset.from_tensor_slices((texts, paths)).repeat()

    @stage("parse")  # as in the pipeline: AutoGraph would rewrite what Python runs, at 3 times the cost
    def parse(texts: tf.Tensor, paths: tf.Tensor) -> Any:
        count = tf.size(texts)
        of_images = tf.zeros(count, tf.int32), tf.fill([count, 2], 500), tf.fill([count], "")
        return target_parser(catalog.classes)(texts, paths, *of_images)

    sizes = {f"{NATIVE_IMAGES} at a call": NATIVE_IMAGES, "one at a call": 1}
    found: dict[str, list[Rate]] = {name: [] for name in (ALONE, *sizes)}
    for _ in range(args.turns):
        found[ALONE].append(rate(alone(texts, args.xmls), args.xmls, args.seconds))
        for name, some in sizes.items():
            # Built from scratch for each turn, since it would keep filling its buffers in the others'.
            parsed = source.batch(some).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            found[name].append(rate(iter(parsed.shard(args.xmls // some, 0)), args.xmls, args.seconds))
    print("| | XMLs a second | of lxml alone | XMLs a CPU second | of lxml alone |\n|---|---|---|---|---|")
    for name, rates in found.items():
        cells = []
        for part in Rate._fields:
            own, base = ([getattr(each, part) for each in every] for every in (rates, found[ALONE]))
            ratio = median(one / other for one, other in zip(own, base, strict=True))
            cells.append(f"{median(own):,.0f} ({min(own):,.0f} to {max(own):,.0f}) | {ratio:.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


def alone(texts: list[bytes], xmls: int) -> Iterator[None]:
    """Parses all XMLs over and over, in one thread; yields after `xmls` of them."""
    while True:
        done = 0
        while done < xmls:
            root = etree.fromstring(texts[done % len(texts)])
            for thing in root.findall("object"):
                thing.findtext("name")
                box = thing.find("bndbox")
                [float(box.findtext(edge)) for edge in EDGES]
            done += 1
        yield


def rate(iterator: Iterator[Any], xmls: int, seconds: float) -> Rate:
    """XMLs a second; each element that arrives is the last of `xmls`."""
    next(iterator)
    next(iterator)
    start, cpu, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        next(iterator)
        done += xmls
    return Rate(done / (time.perf_counter() - start), done / (time.process_time() - cpu))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=lambda path: Path(path).absolute(), help="filelist of images that have XMLs")
    parser.add_argument(
        "--xmls", type=int, default=2048, help="that are parsed at least, a multiple of 32 [%(default)s]"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    main(parser.parse_args())
