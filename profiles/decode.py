"""What decoding an image for its boxes costs: whole, in part, or box by box: python profiles/decode.py -c CONFIG.

For the images of a list that have an XML, by how many boxes they have: milliseconds of CPU time an image, one thread.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import simplejpeg
import tensorflow as tf

from tfpipe import World, load_config
from tfpipe.data.boxes import read_boxes
from tfpipe.data.catalog import load_catalog
from tfpipe.data.images import DCT, MARGIN, box_windows

REPEATS = 3
GROUPS = {"1 box": (1, 1), "2 to 4": (2, 4), "5 and more": (5, 10**6)}


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    config = load_config(args.config, ["data.annotations=xml", "data.crop=boxes"])
    catalog = load_catalog(config.data, "train", World())
    boxes = read_boxes(catalog, World())
    offsets = boxes.offsets(len(catalog))
    found: dict[str, list[list[float]]] = defaultdict(list)
    for image in np.flatnonzero(catalog.annotated)[:: max(1, catalog.annotated.sum() // args.images)]:
        own = boxes.boxes[offsets[image] : offsets[image + 1]]
        group = next((name for name, (low, high) in GROUPS.items() if low <= len(own) <= high), None)
        if group:
            found[group].append(costs(Path(catalog.paths[int(image)]).read_bytes(), own))
    print(
        "| boxes | images | whole, once (simplejpeg) | the part that holds all (TensorFlow) | each alone (TensorFlow) |"
    )
    print("|---|---|---|---|---|")
    for group in GROUPS:
        if found[group]:
            columns = " | ".join(f"{mean(each) * 1e3:.2f}" for each in zip(*found[group], strict=True))
            print(f"| {group} | {len(found[group])} | {columns} |")


def costs(jpeg: bytes, boxes: np.ndarray) -> list[float]:
    """Seconds of CPU time for each of the three ways."""
    size = np.array(simplejpeg.decode_jpeg_header(jpeg)[:2], np.int32)
    windows = box_windows(tf.constant(boxes), tf.repeat(size[None], len(boxes), axis=0)).numpy()
    low = np.maximum(windows[:, :2] - MARGIN, 0)
    high = np.minimum(windows[:, :2] + windows[:, 2:] + MARGIN, size)
    hull = np.concatenate([low.min(0), high.max(0) - low.min(0)])

    def cut(window: np.ndarray) -> tf.Tensor:
        return tf.raw_ops.DecodeAndCropJpeg(contents=jpeg, crop_window=window, channels=3, dct_method=DCT)

    return [
        seconds(lambda: simplejpeg.decode_jpeg(jpeg)),
        seconds(lambda: cut(hull)),
        seconds(lambda: [cut(window) for window in np.concatenate([low, high - low], axis=1)]),
    ]


def seconds(work: Callable[[], Any]) -> float:
    """Of CPU time, the shortest of some."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    main(parser.parse_args())
