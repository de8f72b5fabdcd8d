"""Finds images that cannot be read or decoded, and decodes the intact part of them."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.damage import describe, find_damage
from tfpipe.data.images.windows import DCT, decode_image
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.sources.source import Failure
from tfpipe.util.files import read_whole
from tfpipe.util.progress import progress

# Files per task: a million tasks of one file would take a gigabyte.
CHUNK = 64


def find_broken(paths: FileList, channels: int, threads: int | None = None, show: bool = True) -> Iterator[Failure]:
    """Yields the images at which training would stop, in the list's order; decodes every image completely.

    Decodes to 1 or 3 `channels`; None `threads` means one per CPU that this process may use.
    """
    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)))
    try:
        chunks = [range(start, min(start + CHUNK, len(paths))) for start in range(0, len(paths), CHUNK)]
        chunks_of_failures = pool.map(partial(_broken_of, paths, channels), chunks)
        decoded = (failure for failures in chunks_of_failures for failure in failures)
        for failure in progress(decoded, len(paths), "decoding images", "image", show):
            if failure is not None:
                yield failure
    finally:
        # Also runs when the caller stops iterating, or at Ctrl-C.
        pool.shutdown(cancel_futures=True)


def _broken_of(paths: FileList, channels: int, items: range) -> list[Failure | None]:
    return [find_fault(paths[item], channels) for item in items]


def find_fault(path: str, channels: int) -> Failure | None:
    """Returns why the pipeline could not use an image; None if it could."""
    try:
        contents = read_whole(path)
    except OSError as error:
        return Failure(path, error.strerror or str(error))
    reason = fault_in(contents, channels)
    return None if reason is None else Failure(path, reason)


def fault_in(contents: bytes, channels: int) -> str | None:
    """Returns why the pipeline could not use an image file; None if it could."""
    if not contents or find_damage(contents):  # or it is e.g. a PNG, which TensorFlow reads
        try:
            decode_image(tf.constant(contents), channels)
        except tf.errors.OpError as error:
            return describe(contents, reason(error))
    return None


def decode_in_part(path: str, channels: int) -> np.ndarray | None:
    """Decodes a JPEG up to where it is cut off, to uint8 [height, width, channels]; None if nothing is decodable."""
    try:
        contents = read_whole(path)
        return tf.io.decode_jpeg(
            contents, channels, try_recover_truncated=True, acceptable_fraction=0.0, dct_method=DCT
        ).numpy()
    except (OSError, tf.errors.OpError):
        return None
