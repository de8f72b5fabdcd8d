"""What decoding an image for its boxes costs, by decoder: python profiles/decode.py -c CONFIG.

For the images of a list that have an XML, and for their whole: microseconds of CPU time an image, one thread, in turns.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe import World, load_config
from tfpipe.config import DataConfig, Kernel
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import Decoder, EncodedImages, choose_decoder
from tfpipe.data.images.headers import header_of
from tfpipe.data.images.windows import box_windows
from tfpipe.data.sources.registry import load_split
from tfpipe.native import decoder_name

WHOLE = np.array([[0, 0, 1, 1]], np.float32)
# Sides in pixels of the crops.
SIDES = (224, 64)
NATIVE, GRAPH = "native", "TensorFlow"
GROUPS = {"1 box": (1, 1), "2 to 4": (2, 4), "5 and more": (5, 10**6)}
Image = tuple[bytes, np.ndarray]  # the file, float32 [k, 4]: its boxes


class DataKeys(NamedTuple):
    """Settings of a decoder."""

    side: int  # of a crop, in pixels
    resize: Kernel


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    config = load_config(args.config, ["data.annotations=xml", "data.crop=boxes"])
    images = annotated(config.data, args.images)
    groups = {name: [image for image in images if low <= len(image[1]) <= high] for name, (low, high) in GROUPS.items()}
    groups["the whole image"] = [(jpeg, WHOLE) for jpeg, _ in images]
    print(f"native: {decoder_name()}; ratios are those of the turns' medians.\n")
    print(f"| crops | boxes | images | {GRAPH} | {NATIVE} | {GRAPH} / {NATIVE} |")
    print("|---|---|---|---|---|---|")
    for side in SIDES:
        for name, chosen in groups.items():
            if chosen:
                print(row(f"{side} | {name}", chosen, DataKeys(side, args.resize), args.turns))


def annotated(config: DataConfig, count: int) -> list[Image]:
    """At most about `count` images that have an XML, evenly over the list."""
    split = load_split(config, "train", World())
    catalog = split.catalog
    boxes = with_boxes(catalog, split.storage, World()).boxes
    assert boxes is not None, "they have just been read"
    offsets = boxes.offsets(len(catalog))
    chosen = np.flatnonzero(catalog.annotated)[:: max(1, catalog.annotated.sum() // count)].tolist()
    return [(Path(catalog.paths[item]).read_bytes(), boxes.boxes[offsets[item] : offsets[item + 1]]) for item in chosen]


def row(name: str, images: list[Image], keys: DataKeys, turns: int) -> str:
    """A line of the table."""
    ways = {way: decoder_of(way, keys) for way in (GRAPH, NATIVE)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns + 1):
        for way, decoder in ways.items():
            times[way].append(cpu_us(*decoder, images))
    # The first turn also traced the graphs.
    medians = {way: median(all_turns[1:]) for way, all_turns in times.items()}
    ratio = median(a / b for a, b in zip(times[GRAPH][1:], times[NATIVE][1:], strict=True))
    cells = " | ".join(f"{medians[way]:.0f}" for way in (GRAPH, NATIVE))
    return f"| {name} | {len(images)} | {cells} | **{ratio:.2f}** |"


def decoder_of(way: str, keys: DataKeys) -> tuple[int, Callable[..., Any]]:
    """A decoder's images a call, and its function, traced."""
    name, size = "graph" if way == GRAPH else "native", (keys.side, keys.side)
    config = DataConfig(train_filelist=Path("x"), decoder=name, crop_image_size=size, resize=keys.resize)
    chosen = choose_decoder(config)
    return chosen.images, tf.function(partial(Decoder.decode, chosen), autograph=False, reduce_retracing=True)


def cpu_us(a_call: int, decode: Callable[..., Any], images: list[Image]) -> float:
    """Microseconds of CPU time an image."""
    calls = []
    for at in range(0, len(images), a_call):
        jpegs, boxes = zip(*images[at : at + a_call], strict=True)
        sizes = tf.constant([header_of(jpeg, "")[:2] for jpeg in jpegs])
        owner = tf.repeat(tf.range(len(jpegs), dtype=tf.int64), [len(each) for each in boxes])
        windows = box_windows(tf.constant(np.concatenate(boxes)), tf.gather(sizes, owner))
        labels = tf.zeros(len(windows), tf.int32)
        calls.append(
            (EncodedImages(tf.constant(jpegs)), sizes, Windows(owner, 0 * owner, windows, labels), tf.zeros(0, tf.bool))
        )
    start = time.process_time()
    for call in calls:
        decode(*call)
    return (time.process_time() - start) / len(images) * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--resize", default="bilinear", help="data.resize [%(default)s]")
    main(parser.parse_args())
