"""What decoding an image for its boxes costs, whole, down to the lowest, in part, or box by box.

    python profiles/decode.py -c CONFIG

For the images of a list that have an XML, by how many boxes they have: milliseconds of CPU time an image, one thread.
Then what `data.scaled_decode` gains, by the crops' size: images a second of CPU time, and how far the crops are from
those that Pillow resizes with antialiasing.
"""

import argparse
import io
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import simplejpeg
import tensorflow as tf
from PIL import Image

from tfpipe import World, load_config
from tfpipe.config import DataConfig
from tfpipe.data.catalog.boxes import read_boxes
from tfpipe.data.images.crops import Windows, decode_scale
from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.images.partial_decode import decode_top
from tfpipe.data.images.windows import DCT, MARGIN, box_windows
from tfpipe.data.sources.registry import load_catalog

REPEATS = 3
SIDES = (224, 128, 64, 32)
TURNS = 7
GROUPS = {"1 box": (1, 1), "2 to 4": (2, 4), "5 and more": (5, 10**6)}


def main(args: argparse.Namespace) -> None:
    """Prints the tables."""
    config = load_config(args.config, ["data.annotations=xml", "data.crop=boxes"])
    catalog = load_catalog(config.data, "train", World())
    boxes = read_boxes(catalog, World())
    offsets = boxes.offsets(len(catalog))
    found: dict[str, list[list[float]]] = defaultdict(list)
    chosen: list[tuple[bytes, np.ndarray]] = []
    for image in np.flatnonzero(catalog.annotated)[:: max(1, catalog.annotated.sum() // args.images)]:
        own = boxes.boxes[offsets[image] : offsets[image + 1]]
        chosen.append((Path(catalog.paths[int(image)]).read_bytes(), own))
        group = next((name for name, (low, high) in GROUPS.items() if low <= len(own) <= high), None)
        if group:
            found[group].append(costs(*chosen[-1]))
    print(
        "| boxes | images | whole (simplejpeg) | down to the lowest | the part that holds all (TensorFlow) | "
        "each alone (TensorFlow) |"
    )
    print("|---|---|---|---|---|---|")
    for group in GROUPS:
        if found[group]:
            columns = " | ".join(f"{mean(each) * 1e3:.2f}" for each in zip(*found[group], strict=True))
            print(f"| {group} | {len(found[group])} | {columns} |")
    print("\n| crops | decoder | at 1/2, 1/4, 1/8 | whole | scaled | ratio | levels from Pillow's, whole | scaled |")
    print("|---|---|---|---|---|---|---|---|")
    for side in SIDES:
        for decoder in ("native", "graph"):
            print(scaled(chosen, config.data.model_copy(update={"decoder": decoder, "crop_image_size": (side, side)})))


def scaled(images: list[tuple[bytes, np.ndarray]], config: DataConfig) -> str:
    """A line of the second table; the ratio is the median of some turns', levels are of 255 and of scaled crops."""
    ways = [config.model_copy(update={"scaled_decode": each}) for each in (False, True)]
    calls = [batches(images, way) for way in ways]
    decodes = [tf.function(choose_decoder(way).decode, autograph=False, reduce_retracing=True) for way in ways]

    def crops(way: int) -> np.ndarray:
        return np.concatenate([decodes[way](*call).numpy() for call in calls[way]])

    times = np.concatenate([call[2].scale_log2 for call in calls[1]])
    expected = np.concatenate([antialiased(jpeg, boxes, config.crop_image_size) for jpeg, boxes in images])
    distances = [np.abs(crops(way) - expected)[times > 0].mean() for way in (0, 1)]
    rates = np.array([[len(images) / seconds(lambda way=way: crops(way), 1) for way in (0, 1)] for _ in range(TURNS)])
    whole, part = np.median(rates, axis=0)
    shares = ", ".join(f"{(times == each).mean():.0%}" for each in (1, 2, 3))
    ratio = median(rates[:, 1] / rates[:, 0])
    return (
        f"| {config.crop_image_size[0]} | {config.decoder} | {shares} | {whole:.0f} | {part:.0f} | **{ratio:.2f}** | "
        f"{distances[0]:.2f} | {distances[1]:.2f} |"
    )


def batches(images: list[tuple[bytes, np.ndarray]], config: DataConfig) -> list[tuple[Any, ...]]:
    """What the decoder is called with, as many images at once as it takes."""
    result, some = [], choose_decoder(config).images
    for at in range(0, len(images), some):
        jpegs, boxes = zip(*images[at : at + some], strict=True)
        sizes = tf.constant([simplejpeg.decode_jpeg_header(jpeg)[:2] for jpeg in jpegs])
        owner = tf.repeat(tf.range(len(jpegs), dtype=tf.int64), [len(each) for each in boxes])
        windows = box_windows(tf.constant(np.concatenate(boxes)), tf.gather(sizes, owner))
        times = decode_scale(windows, owner, config)
        some_windows = Windows(owner, 0 * owner, windows, 0 * times, times)
        result.append((tf.constant(jpegs), sizes, some_windows, tf.zeros(0, tf.bool)))
    return result


def antialiased(jpeg: bytes, boxes: np.ndarray, target: tuple[int, int]) -> np.ndarray:
    """float32 [k, *target, 3]: the crops by Pillow."""
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    sizes = tf.repeat([image.size[::-1]], len(boxes), axis=0)
    edges = [(left, top, left + width, top + height) for top, left, height, width in box_windows(boxes, sizes).numpy()]
    crops = [image.crop(each).resize(target[::-1], Image.Resampling.BILINEAR) for each in edges]
    return np.array([np.asarray(crop) for crop in crops], np.float32)


def costs(jpeg: bytes, boxes: np.ndarray) -> list[float]:
    """Seconds of CPU time for each of the four ways."""
    size = np.array(simplejpeg.decode_jpeg_header(jpeg)[:2], np.int32)
    windows = box_windows(tf.constant(boxes), tf.repeat(size[None], len(boxes), axis=0)).numpy()
    low = np.maximum(windows[:, :2] - MARGIN, 0)
    high = np.minimum(windows[:, :2] + windows[:, 2:] + MARGIN, size)
    hull = np.concatenate([low.min(0), high.max(0) - low.min(0)])

    def top() -> np.ndarray | None:
        return decode_top(jpeg, "RGB", int((windows[:, 0] + windows[:, 2]).max()))

    def cut(window: np.ndarray) -> tf.Tensor:
        return tf.raw_ops.DecodeAndCropJpeg(contents=jpeg, crop_window=window, channels=3, dct_method=DCT)

    return [
        seconds(lambda: simplejpeg.decode_jpeg(jpeg)),
        seconds(lambda: top() is not None or simplejpeg.decode_jpeg(jpeg)),
        seconds(lambda: cut(hull)),
        seconds(lambda: [cut(window) for window in np.concatenate([low, high - low], axis=1)]),
    ]


def seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Of CPU time, the shortest of some."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    main(parser.parse_args())
