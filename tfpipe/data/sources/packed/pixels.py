"""Writes the pixels of packed crops into a batch's buffer: copies raw ones, decodes JPEGs."""

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
from tfpipe.native import Native, native
from tfpipe.util.memory import free_memory
from tfpipe.util.open_files import OpenFiles
from tfpipe.util.retry import retried

Contents = Callable[[int, int, int], bytes | memoryview]
"""(shard, offset, length) -> the record's bytes. Raises OSError or ValueError."""
FillOne = Callable[[np.ndarray, int, int, int], None]
"""(array, shard, offset, length): writes the record's pixels into the array. Raises OSError or ValueError."""
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
    if packed.remote is not None:
        return _fetched(packed, images, shape)
    mapped = _mapped(packed, images, math.prod(shape) if packed.kind == "raw" else 1)
    library = native()
    if packed.kind == "raw":
        if mapped is None:
            return _each(packed, images, _copier(packed))
        return _taken(packed, mapped, math.prod(shape)) if library is None else _copied(packed, mapped, library)
    contents = _read(packed) if mapped is None else _sliced(mapped)
    each = _each(packed, images, _decoder(contents, shape))
    if library is None:
        return each
    where = _addresses_read(packed, images) if mapped is None else _addresses_mapped(packed, mapped)
    return _together(packed, where, library, each)


def _fetched(packed: Shards, images: FileList, shape: tuple[int, int, int]) -> Fill:
    """Returns a Fill for shards behind URLs, which reads all records of a batch together."""
    library = native()

    def copy(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        contents = packed.fetch(records, images)
        if library is not None:
            assert all(len(each) == math.prod(shape) for each in contents), "a fetched record is whole"
            where, _held = _addresses_of(contents)
            library.copy(where, flips, crops)
            return
        for crop, each in zip(crops, contents, strict=True):
            crop.reshape(-1)[:] = np.frombuffer(each, np.uint8)
        mirror_in_place(crops, flips)

    def decode(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        contents = packed.fetch(records, images)
        each = _each(packed, images, _decoder(lambda *extent: contents[numbers[extent]], shape))
        numbers = {extent: number for number, extent in enumerate(packed.places(records))}
        if library is None:
            each(crops, records, flips)
        else:
            _together(packed, lambda _: _addresses_of(contents), library, each)(crops, records, flips)

    return copy if packed.kind == "raw" else decode


def _mapped(packed: Shards, images: FileList, multiple: int) -> Mapped | None:
    """Maps the shards into memory if free memory can hold them all: a read call would take 9 microseconds a JPEG.

    Otherwise returns None: a read requests a whole crop from storage at once, a mapping one page after the other.
    """
    try:
        sizes = np.array([os.path.getsize(path) for path in packed.paths])
        mapped = retried(map_files)(packed.paths, multiple) if sizes.sum() < free_memory() else None
    except OSError as error:
        raise TfpipeError(f"cannot read {error.filename}: {error.strerror}; repair it, or pack again") from error
    _, _, shards, offsets, lengths = packed.records
    if mapped is not None and len(beyond := np.flatnonzero(offsets + lengths > sizes[shards])):
        raise TfpipeError(f"{packed.name(beyond[0], images)}: {CUT}")
    return mapped


def _copied(packed: Shards, mapped: Mapped, library: Native) -> Fill:
    """Returns a Fill with one call of the library in C per batch, which takes 0.6 of the time of NumPy's."""
    addresses = _addresses_mapped(packed, mapped)

    def copy(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        where, _held = addresses(records)
        library.copy(where, flips, crops)

    return copy


def _taken(packed: Shards, mapped: Mapped, size: int) -> Fill:
    """Returns a Fill with one call of NumPy per batch: one per crop takes 1.5 times as long with two threads (GIL)."""
    places = mapped.starts[packed.records.shard] + packed.records.offset
    first = int(places[0]) % size
    assert not ((places - first) % size).any(), "the places were checked, and NumPy's headers are all of one length"
    rows = mapped.data[first : first + (len(mapped.data) - first) // size * size].reshape(-1, size)
    numbers = (places - first) // size

    def take(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        # With the mode "raise", NumPy would copy twice.
        np.take(rows, numbers[records], axis=0, out=crops.reshape(-1, size), mode="clip")
        mirror_in_place(crops, flips)

    return take


def _each(packed: Shards, images: FileList, fill: FillOne) -> Fill:
    """Returns a Fill that calls `fill` record by record."""

    def fill_each(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        for record, crop, extent in zip(records, crops, packed.places(records), strict=True):
            with _named(packed, images, record):
                fill(crop, *extent)
        mirror_in_place(crops, flips)

    return fill_each


def _together(packed: Shards, addresses: Addresses, library: Native, each: Fill) -> Fill:
    """Returns a Fill with one call of the decoder in C per batch; `each` decodes the JPEGs that it refuses."""
    lengths = packed.records.length

    def decode(crops: np.ndarray, records: np.ndarray, flips: np.ndarray) -> None:
        refused = np.zeros(len(records), bool)
        where, _held = addresses(records)
        library.whole(where, lengths[records], flips, crops, refused)
        for number in np.flatnonzero(refused).tolist():
            one = slice(number, number + 1)
            each(crops[one], records[one], flips[one])

    return decode


def _addresses_mapped(packed: Shards, mapped: Mapped) -> Addresses:
    places = (mapped.data.ctypes.data + mapped.starts[packed.records.shard] + packed.records.offset).astype(np.uintp)
    return lambda records: (places[records], mapped)


def _addresses_read(packed: Shards, images: FileList) -> Addresses:
    contents = _read(packed)

    def addresses(records: np.ndarray) -> tuple[np.ndarray, object]:
        read = []
        for record, extent in zip(records, packed.places(records), strict=True):
            with _named(packed, images, record):
                read.append(contents(*extent))
        return _addresses_of(read)

    return addresses


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


def _sliced(mapped: Mapped) -> Contents:
    data, starts = mapped.data.data, mapped.starts.tolist()
    return lambda shard, offset, length: data[starts[shard] + offset : starts[shard] + offset + length]


def _read(packed: Shards) -> Callable[[int, int, int], bytes]:
    files = OpenFiles(packed.paths)

    def read(shard: int, offset: int, length: int) -> bytes:
        contents = os.pread(files[shard], length, offset)
        if len(contents) != length:
            raise ValueError(CUT)
        return contents

    return read


def _decoder(contents: Contents, shape: tuple[int, int, int]) -> FillOne:
    """Returns a FillOne that decodes by TensorFlow's ops."""

    def decode(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        try:
            decoded = decode_image(tf.constant(bytes(contents(shard, offset, length))), shape[2]).numpy()
        except tf.errors.OpError as error:
            raise ValueError(reason(error)) from error
        if decoded.shape != shape:
            raise ValueError(f"it is of height, width and channels {decoded.shape}, not {shape}")
        crop[:] = decoded

    return decode


def _copier(packed: Shards) -> FillOne:
    """Returns a FillOne that reads pixels directly into the array."""
    files = OpenFiles(packed.paths)

    def read(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        if os.preadv(files[shard], [crop.data], offset) != length:
            raise ValueError(CUT)

    return read


def mirror_in_place(crops: np.ndarray, flips: np.ndarray) -> None:
    """Mirrors the crops (uint8 [k, height, width, channels]) that `flips` (bool [k]) selects; none for bool [0]."""
    columns = np.arange(crops.shape[2])[::-1]
    for number in np.flatnonzero(flips).tolist():
        np.take(crops[number].copy(), columns, axis=1, out=crops[number], mode="clip")  # half the time of a slice
