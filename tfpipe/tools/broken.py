"""Images that cannot be read or decoded, and what still can be seen of them."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import simplejpeg
import tensorflow as tf

from tfpipe.data.failures import Failure
from tfpipe.data.filelist import FileList
from tfpipe.data.images import decode_image
from tfpipe.data.reasons import reason
from tfpipe.progress import progress

# Files handed to a thread at once: a million tasks of one would take a gigabyte.
CHUNK = 64
JPEG = b"\xff\xd8"


def find_broken(paths: FileList, channels: int, threads: int | None = None, show: bool = True) -> Iterator[Failure]:
    """The images that training would stop at, in the list's order; each is decoded whole.

    Args:
        paths: of the images.
        channels: 1 or 3, to decode to.
        threads: at once; None for one for each CPU that this process may use.
        show: whether to show progress.
    """
    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)))
    try:
        chunks = [range(start, min(start + CHUNK, len(paths))) for start in range(0, len(paths), CHUNK)]
        found = pool.map(partial(_broken_of, paths, channels), chunks)
        decoded = (failure for failures in found for failure in failures)
        for failure in progress(decoded, len(paths), "decoding images", "image", show):
            if failure is not None:
                yield failure
    finally:
        # Also when nobody asks for more, or at Ctrl-C.
        pool.shutdown(cancel_futures=True)


def _broken_of(paths: FileList, channels: int, items: range) -> list[Failure | None]:
    return [find_fault(paths[item], channels) for item in items]


def find_fault(path: str, channels: int) -> Failure | None:
    """What is wrong with an image, as the pipeline would have it; None if nothing."""
    try:
        with open(path, "rb") as file:
            contents = file.read()
    except OSError as error:
        return Failure(path, error.strerror or str(error))
    if not contents:
        return Failure(path, "the file is empty")
    try:
        simplejpeg.decode_jpeg(contents, "GRAY" if channels == 1 else "RGB")
    except ValueError as damage:  # or a PNG, say, which TensorFlow reads
        try:
            decode_image(tf.constant(contents), channels)
        except tf.errors.OpError as error:
            # Of a JPEG TensorFlow says only that it failed.
            return Failure(path, str(damage) if contents[:2] == JPEG else reason(error).split(" [Op:")[0])
    return None


def decode_in_part(path: str, channels: int) -> np.ndarray | None:
    """uint8 [height, width, channels]: what a JPEG holds up to where it is cut off; None if nothing can be seen."""
    try:
        with open(path, "rb") as file:
            return simplejpeg.decode_jpeg(file.read(), "GRAY" if channels == 1 else "RGB", strict=False)
    except (OSError, ValueError):
        return None
