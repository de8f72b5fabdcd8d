"""JPEG decoders over a folder: python profiles/decoders.py FOLDER [--images 1000] [--turns 5].

Images a second and MB of files a second of one CPU, by CPU time, whole images to RGB from memory; in turns, medians.
Of simplejpeg, Pillow, OpenCV, torchvision and TensorFlow those that are installed are compared, at the settings that
give libjpeg's default pixels, and at the fastest ones. tfpipe's own decodes JPEGs, and their coefficients.
"""

import argparse
import io
import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tfpipe.data.images.headers import header_of
from tfpipe.native import core

Decode = Callable[[bytes], Any]
# Those of Pillow and OpenCV, and of the others; TensorFlow's are ValueErrors here, see tensorflow_ways.
ERRORS = (OSError, ValueError, RuntimeError)


class Way(NamedTuple):
    """A decoder with its settings."""

    name: str
    decode: Decode
    prepare: Callable[[bytes], bytes] = lambda jpeg: jpeg


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    paths = sorted(path for path in args.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    jpegs = [path.read_bytes() for path in paths[:: max(1, len(paths) // args.images)][: args.images]]
    mb, chosen = sum(map(len, jpegs)) / 1e6, ways()
    print(f"{len(jpegs)} JPEGs, {mb:.1f} MB.\n\n| decoder | images/s | MB/s | cannot decode |\n|---|---|---|---|")
    forms = {way.name: [way.prepare(jpeg) for jpeg in jpegs] for way in chosen}
    times: dict[str, list[float]] = {way.name: [] for way in chosen}
    failed = dict.fromkeys(times, 0)
    for _ in range(args.turns):
        for way in chosen:
            taken_s, failed[way.name] = cpu_s(way.decode, forms[way.name])
            times[way.name].append(taken_s)
    for name, all_turns in times.items():
        taken_s = median(all_turns)
        print(f"| {name} | {len(jpegs) / taken_s:.0f} | {mb / taken_s:.1f} | {failed[name]} |")


def cpu_s(decode: Decode, files: list[bytes]) -> tuple[float, int]:
    """Seconds of CPU time for all files, and how many cannot be decoded."""
    failed, start = 0, time.process_time()
    for file in files:
        try:
            decode(file)
        except ERRORS:
            failed += 1
    return time.process_time() - start, failed


def ways() -> list[Way]:
    """The decoders that are installed."""
    found: list[Way] = []
    for make in (tfpipe_ways, simplejpeg_ways, pillow_ways, opencv_ways, torchvision_ways, tensorflow_ways):
        try:
            found += make()
        except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision without its library
            print(f"{make.__name__.removesuffix('_ways')}: cannot be imported ({error})")
    return found


def tfpipe_ways() -> list[Way]:
    """Decodes in C, straight to pixels."""
    library, none = core(), np.zeros(0, bool)

    def decode(file: bytes) -> np.ndarray:
        height, width = header_of(file, "")[:2]
        pixels, refused = np.empty((1, height, width, 3), np.uint8), np.zeros(1, bool)
        address, length = np.frombuffer(file, np.uint8).ctypes.data, len(file)
        library.whole(np.array([address], np.uintp), np.array([length]), none, pixels, refused)
        if refused[0]:
            raise ValueError("refused")
        return pixels

    stored = Way("tfpipe, from coefficients", decode, lambda jpeg: library.store(jpeg) or jpeg)
    return [Way(f"tfpipe ({library.simd})", decode), stored]


def simplejpeg_ways() -> list[Way]:
    """libjpeg-turbo by simplejpeg."""
    decode = import_module("simplejpeg").decode_jpeg
    fast = {"fastdct": True, "fastupsample": True}
    return [Way("simplejpeg", decode), Way("simplejpeg, fast", lambda jpeg: decode(jpeg, **fast))]


def pillow_ways() -> list[Way]:
    """libjpeg-turbo by Pillow."""
    image = import_module("PIL.Image")
    return [Way("Pillow", lambda jpeg: image.open(io.BytesIO(jpeg)).convert("RGB").tobytes())]


def opencv_ways() -> list[Way]:
    """libjpeg-turbo by OpenCV, on one thread."""
    cv2 = import_module("cv2")
    cv2.setNumThreads(1)
    flags = cv2.IMREAD_COLOR_RGB if hasattr(cv2, "IMREAD_COLOR_RGB") else cv2.IMREAD_COLOR

    def decode(jpeg: bytes) -> np.ndarray:
        pixels = cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)
        if pixels is None:
            raise ValueError("refused")
        return pixels

    return [Way("OpenCV", decode)]


def torchvision_ways() -> list[Way]:
    """libjpeg-turbo by torchvision."""
    torch, io_ = import_module("torch"), import_module("torchvision.io")
    rgb = io_.ImageReadMode.RGB
    return [Way("torchvision", lambda jpeg: io_.decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), rgb))]


def tensorflow_ways() -> list[Way]:
    """libjpeg-turbo by TensorFlow's op."""
    tf = import_module("tensorflow")

    def of(**options: Any) -> Decode:
        graph = tf.function(lambda jpeg: tf.io.decode_jpeg(jpeg, channels=3, **options), autograph=False)

        def decode(jpeg: bytes) -> Any:
            try:
                return graph(tf.constant(jpeg))
            except tf.errors.InvalidArgumentError as error:
                raise ValueError("refused") from error

        return decode

    exact = of(dct_method="INTEGER_ACCURATE")
    return [Way("TensorFlow", exact), Way("TensorFlow, fast", of(dct_method="INTEGER_FAST", fancy_upscaling=False))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of JPEGs, with folders of its own")
    parser.add_argument("--images", type=int, default=1000, help="at most, evenly over the folder [%(default)s]")
    parser.add_argument("--turns", type=int, default=5, help="[%(default)s]")
    main(parser.parse_args())
