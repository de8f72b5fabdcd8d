"""Writes the pixels of packed crops into a batch's buffer, in one call of C: copies raw ones, decodes JPEGs."""

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.windows import decode_image
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.sources.packed.mmap import Mapped, map_files
from tfpipe.data.sources.packed.shards import CUT, Shards
from tfpipe.errors import TfpipeError
from tfpipe.native import native
from tfpipe.util.open_files import OpenFiles
from tfpipe.util.resources import free_memory
from tfpipe.util.retry import retried

Fill = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""(array [k, ...], records (int64 [k]), which to mirror (bool [k], or [0] for none)): writes the records' pixels into
the array. Raises a ValueError that names the record."""
Addresses = Callable[[np.ndarray], tuple[np.ndarray, object]]
"""(records (int64 [k])) -> the addresses of their contents (uintp [k]), valid for as long as the object is held. Raises
a ValueError that names the record."""


def filler(packed: Shards, images: FileList, shape: tuple[int, int, int]) -> Fill:
    """Returns the Fill for packed crops of this shape: height, width, channels.

    Raises:
        TfpipeError: a shard cannot be mapped, or has become shorter than it was; the message names it.
    """
    find, library, lengths = _addresses(packed, images), native(), packed.records.length

    def copy(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        assert (lengths[records] == math.prod(shape)).all(), "the places were checked"
        addresses, _held = find(records)
        library.copy(addresses, flips, crops)

    def decode(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        refused = np.zeros(len(records), bool)
        addresses, _held = find(records)
        library.whole(addresses, lengths[records], flips, crops, refused)
        for number in np.flatnonzero(refused).tolist():
            with _named(packed, images, records[number]):
                jpeg = ctypes.string_at(int(addresses[number]), int(lengths[records[number]]))
                crop = _decode_by_tensorflow(jpeg, shape)
            crops[number] = crop[:, ::-1] if len(flips) and flips[number] else crop

    return copy if packed.kind == "raw" else decode


def _addresses(packed: Shards, images: FileList) -> Addresses:
    """Returns the function that finds records where the shards are mapped, or reads or fetches them."""
    if packed.remote is not None:
        return lambda records: _addresses_of(packed.fetch(records, images))
    mapped = _mapped(packed, images)
    if mapped is not None:
        starts = mapped.starts[packed.records.shard] + packed.records.offset
        places = (mapped.data.ctypes.data + starts).astype(np.uintp)
        return lambda records: (places[records], mapped)
    files = OpenFiles(packed.paths)

    def read(records: np.ndarray) -> tuple[np.ndarray, object]:
        contents = []
        for record, (shard, offset, length) in zip(records, packed.places(records), strict=True):
            with _named(packed, images, record):
                contents.append(os.pread(files[shard], length, offset))
                if len(contents[-1]) != length:
                    raise ValueError(CUT)
        return _addresses_of(contents)

    return read


def _mapped(packed: Shards, images: FileList) -> Mapped | None:
    """Maps the shards into memory if free memory can hold them all: a read call would take 9 microseconds a JPEG.

    Otherwise returns None: a read requests a whole crop from storage at once, a mapping one page after the other.
    """
    try:
        sizes = np.array([os.path.getsize(path) for path in packed.paths])
        mapped = retried(map_files)(packed.paths) if sizes.sum() < free_memory() else None
    except OSError as error:
        raise TfpipeError(f"cannot read {error.filename}: {error.strerror}; repair it, or pack again") from error
    _, _, shards, offsets, lengths = packed.records
    if mapped is not None and len(beyond := np.flatnonzero(offsets + lengths > sizes[shards])):
        raise TfpipeError(f"{packed.name(beyond[0], images)}: {CUT}")
    return mapped


def _addresses_of(contents: list[bytes]) -> tuple[np.ndarray, object]:
    held = (ctypes.c_char_p * len(contents))(*map(ctypes.c_char_p, contents))
    addresses = np.ctypeslib.as_array(ctypes.cast(held, ctypes.POINTER(ctypes.c_size_t)), (len(contents),))
    return addresses, (held, contents)


@contextmanager
def _named(packed: Shards, images: FileList, record: int) -> Iterator[None]:
    """Names the record in an error inside `with`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"{packed.name(record, images)}: {error}") from None


def _decode_by_tensorflow(jpeg: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes a JPEG of a kind that C refuses (uint8 [*shape]). Raises ValueError for damage, or another size."""
    try:
        decoded = decode_image(tf.constant(jpeg), shape[2]).numpy()
    except tf.errors.OpError as error:
        raise ValueError(reason(error)) from error
    if decoded.shape != shape:
        raise ValueError(f"it is of height, width and channels {decoded.shape}, not {shape}")
    return decoded
