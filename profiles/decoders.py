"""Decoders over a folder of JPEGs: python profiles/decoders.py FOLDER [--format PNG] [--images 1000] [--turns 5].

Images a second and MB of files a second of one CPU, by CPU time, whole images to RGB from memory; in turns, medians.
Of simplejpeg, Pillow, OpenCV, torchvision, torchcodec and TensorFlow those that are installed are compared, at the
settings that give libjpeg's default pixels, and at the fastest ones. tfpipe's own decodes JPEGs, and their
coefficients; for other formats, into which Pillow turns the JPEGs first, it uses TensorFlow's ops and Pillow.
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
    files = jpegs if args.format == "JPEG" else [converted(jpeg, args.format) for jpeg in jpegs]
    mb, chosen = sum(map(len, files)) / 1e6, ways(args.format)
    print(f"{len(files)} files, {args.format}, {mb:.1f} MB.\n")
    print("| decoder | images/s | MB/s | cannot decode |\n|---|---|---|---|")
    forms = {way.name: [way.prepare(file) for file in files] for way in chosen}
    times: dict[str, list[float]] = {way.name: [] for way in chosen}
    failed = dict.fromkeys(times, 0)
    for _ in range(args.turns):
        for way in chosen:
            taken_s, failed[way.name] = cpu_s(way.decode, forms[way.name])
            times[way.name].append(taken_s)
    for name, all_turns in times.items():
        taken_s = median(all_turns)
        print(f"| {name} | {len(files) / taken_s:.0f} | {mb / taken_s:.1f} | {failed[name]} |")


def converted(jpeg: bytes, form: str) -> bytes:
    """The image in another format, at Pillow's settings."""
    image, file = import_module("PIL.Image"), io.BytesIO()
    image.open(io.BytesIO(jpeg)).convert("RGB").save(file, form)
    return file.getvalue()


def cpu_s(decode: Decode, files: list[bytes]) -> tuple[float, int]:
    """Seconds of CPU time for all files, and how many cannot be decoded."""
    failed, start = 0, time.process_time()
    for file in files:
        try:
            decode(file)
        except ERRORS:
            failed += 1
    return time.process_time() - start, failed


def ways(form: str) -> list[Way]:
    """The decoders of a format that are installed."""
    found: list[Way] = []
    of_jpegs = (tfpipe_ways, simplejpeg_ways, pillow_ways, opencv_ways, torchvision_ways, torchcodec_ways)
    others = (pillow_ways, opencv_ways, torchvision_ways, torchcodec_ways, tensorflow_of_all)
    for make in (*of_jpegs, tensorflow_ways) if form == "JPEG" else others:
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
    """libjpeg-turbo, and others, by Pillow."""
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
    """libjpeg-turbo, libpng and libwebp by torchvision."""
    torch, io_ = import_module("torch"), import_module("torchvision.io")

    def decode(file: bytes) -> Any:
        return io_.decode_image(torch.frombuffer(bytearray(file), dtype=torch.uint8), io_.ImageReadMode.RGB)

    return [Way("torchvision", decode)]


def torchcodec_ways() -> list[Way]:
    """The same libraries by torchcodec."""
    decode = import_module("torchcodec.decoders").decode_image
    return [Way("torchcodec", lambda file: decode(file, mode="RGB"))]


def tensorflow_of_all() -> list[Way]:
    """TensorFlow's op of all formats, which has neither TIFF nor AVIF."""
    tf = import_module("tensorflow")

    def decode(file: bytes) -> Any:
        try:
            return tf.io.decode_image(file, 3, expand_animations=False)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError("refused") from error

    return [Way("TensorFlow", decode)]


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
    parser.add_argument("--format", default="JPEG", help="another one of Pillow's, e.g. PNG or WEBP [%(default)s]")
    parser.add_argument("--images", type=int, default=1000, help="at most, evenly over the folder [%(default)s]")
    parser.add_argument("--turns", type=int, default=5, help="[%(default)s]")
    main(parser.parse_args())
