"""Loads the pixels of packed crops into a batch's buffer, in one call of C: copies raw ones, decodes JPEGs."""

import ctypes
import errno
import math
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.by_pillow import ByPillow
from tfpipe.data.images.whole import Decoding, decode_image
from tfpipe.data.runtime.buffer_pool import BufferPool
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.sources.packed.shards import CUT, Shards
from tfpipe.errors import TfpipeError
from tfpipe.native import native
from tfpipe.util.open_files import allow_open
from tfpipe.util.resources import free_memory
from tfpipe.util.retry import retried


def loader(
    packed: Shards, images: FileList, shape: tuple[int, int, int]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns a function: (records (int64 [k]), which to mirror (bool [k], or [0] for none)) -> uint8 [k, *shape].

    It raises a ValueError that names the record. The arrays are aligned, so that TensorFlow adopts them without a copy;
    their memory is reused after it is released.

    Raises:
        TfpipeError: a shard cannot be mapped, or has become shorter than it was; the message names it.
    """
    find, library, lengths, buffers = _addresses(packed, images), native(), packed.records.length, BufferPool()

    def load(records: np.ndarray, flips: np.ndarray) -> np.ndarray:
        crops = buffers.take((len(records), *shape))
        addresses, _held = find(records)
        if packed.kind == "raw":
            assert (lengths[records] == math.prod(shape)).all(), "the places were checked"
            library.copy(addresses, flips, crops)
            return crops
        refused = np.zeros(len(records), bool)
        library.whole(addresses, lengths[records], flips, crops, refused)
        for number in np.flatnonzero(refused).tolist():
            jpeg = ctypes.string_at(int(addresses[number]), int(lengths[records[number]]))
            try:
                crop = _decode_by_tensorflow(jpeg, shape)
            except ValueError as error:
                raise ValueError(f"{packed.name(records[number], images)}: {error}") from None
            crops[number] = crop[:, ::-1] if len(flips) and flips[number] else crop
        return crops

    return load


def _addresses(packed: Shards, images: FileList) -> Callable[[np.ndarray], tuple[np.ndarray, object]]:
    """Returns the function that finds records (int64 [k]) where the shards are mapped, or reads or fetches them.

    It returns their addresses (uintp [k]), valid while the object is held; raises a ValueError that names the record.
    """
    maps = _map_shards(packed, images) if packed.remote is None else None
    if maps is not None:
        starts = np.array([np.frombuffer(content, np.uint8).ctypes.data for content in maps], np.uintp)
        places = starts[packed.records.shard] + packed.records.offset.astype(np.uintp)
        return lambda records: (places[records], maps)
    read = packed.reader(images)

    def find(records: np.ndarray) -> tuple[np.ndarray, object]:
        contents = read(records)
        pointers = (ctypes.c_char_p * len(contents))(*map(ctypes.c_char_p, contents))
        addresses = np.ctypeslib.as_array(ctypes.cast(pointers, ctypes.POINTER(ctypes.c_size_t)), (len(contents),))
        return addresses, (pointers, contents)

    return find


def _map_shards(packed: Shards, images: FileList) -> list[mmap.mmap | bytes] | None:
    """Maps the shards into memory if free memory can hold them all: a read call would take 9 microseconds a JPEG.

    Otherwise returns None, since a read requests a whole crop from storage at once, a mapping page after page; or the
    process's address space is limited to less (`ulimit -v`).
    """
    allow_open(len(packed.paths))
    try:
        sizes = np.array([os.path.getsize(path) for path in packed.paths])
        maps = [retried(_map)(path) for path in packed.paths] if sizes.sum() < free_memory() else None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return None
        raise TfpipeError(f"cannot read {error.filename}: {error.strerror}; repair it, or pack again") from error
    _, _, shards, offsets, lengths = packed.records
    if maps is not None and len(beyond := np.flatnonzero(offsets + lengths > sizes[shards])):
        raise TfpipeError(f"{packed.name(beyond[0], images)}: {CUT}")
    return maps


def _map(path: str) -> mmap.mmap | bytes:
    """Maps a file, read-only.

    Asks for huge pages, with which copying a crop of 150 kB takes 13 microseconds instead of 20. Kernel and file system
    must support them for files (ext4 since Linux 6.16, XFS before), and the page cache must not hold the file in small
    pages already.
    """
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:  # mmap refuses it
            return b""
        try:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
    with suppress(OSError):  # without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _decode_by_tensorflow(jpeg: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes a JPEG of a kind that C refuses (uint8 [*shape]). Raises ValueError for damage, or another size."""
    try:
        decoded = decode_image(tf.constant(jpeg), shape[2], Decoding(turn=False, by_pillow=ByPillow().decode)).numpy()
    except tf.errors.OpError as error:
        raise ValueError(reason(error)) from error
    if decoded.shape != shape:
        raise ValueError(f"it is of height, width and channels {decoded.shape}, not {shape}")
    return decoded
