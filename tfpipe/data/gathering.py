"""Records of packed data, read many at a time: crops a batch at a call, straight into the batch."""

import math
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.crops import Crops, crop_seeds
from tfpipe.data.decoders import ALIGNMENT
from tfpipe.data.headers import START, header_of, jpeg_header
from tfpipe.data.images import flipped
from tfpipe.data.memory import free_memory
from tfpipe.data.scopes import stage
from tfpipe.data.shards import Files, Packed, allow_open
from tfpipe.data.stream import Visit
from tfpipe.data.threads import calls_at_once
from tfpipe.distributed import World

# Files read at a call: Python is called once for all of them.
FILES = 32
CUT = "the shard ends within it"


Contents = Callable[[int, int, int], bytes | memoryview]
"""A record's bytes, given its shard, offset and length; fewer where the shard ends before. Raises OSError."""
Fill = Callable[[np.ndarray, int, int, int], None]
"""Writes a record's pixels into an array, given the same. Raises OSError or ValueError."""


class Wanted(NamedTuple):
    """Crops to be gathered."""

    records: tf.Tensor  # int64 [k]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number among the image's crops


def find_crops(catalog: Catalog) -> Callable[[Visit], Wanted]:
    """In graph: from visits, int64 [n] each, to the crops that they want."""
    assert catalog.packed is not None, "these are packed"
    records = catalog.packed.records
    first = np.arange(catalog.samples + 1) if catalog.by_box else records.offsets(len(catalog))
    with tf.device("CPU"):  # where tf.data runs
        first, labels = tf.constant(first, tf.int64), tf.constant(records.label)

    def find(visits: Visit) -> Wanted:
        begin = tf.gather(first, visits.item)
        chosen = tf.ragged.range(begin + visits.first_crop, tf.gather(first, visits.item + 1))
        own = chosen.value_rowids()
        numbers = chosen.values - tf.gather(begin, own)
        positions = tf.stack([tf.gather(visits.position, own), numbers], axis=1)
        return Wanted(chosen.values, tf.gather(labels, chosen.values), positions)

    return find


def gather_crops(dataset: tf.data.Dataset, catalog: Catalog, config: DataConfig, world: World) -> tf.data.Dataset:
    """Batches of Wanted -> of Crops: reads, and decodes what is JPEG; mirrors.

    Python is called once a batch. Its loop takes 6 microseconds a crop, beside 270 to decode one of 224x224.
    """
    shape = (*config.crop_image_size, config.num_channels)
    load = loader(catalog, shape)
    mirror = bool(config.flip) and catalog.split == "train"

    @stage("gather")
    def gather_batch(wanted: Wanted) -> Crops:
        if mirror:
            flips = flipped(crop_seeds(2 * config.seed + 1, wanted.positions[:, 0], wanted.positions[:, 1]))
        else:
            flips = tf.zeros(0, tf.bool)
        images = tf.numpy_function(load, [wanted.records, flips], tf.uint8, stateful=False)
        images = tf.ensure_shape(images, [wanted.records.shape[0], *shape])
        return Crops(images, wanted.labels, wanted.positions)

    return dataset.map(gather_batch, num_parallel_calls=calls_at_once(config, world).decode, name="fetch")


def loader(catalog: Catalog, shape: tuple[int, int, int]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """From records (int64 [k]), and which of them to mirror (bool [k], or [0] for none), to uint8 [k, *shape].

    Its arrays are aligned, so that TensorFlow takes them without a copy, and come back to be used again once nobody
    holds them.
    """
    import cv2

    cv2.setNumThreads(1)
    packed, rooms = catalog.packed, Rooms()
    assert packed is not None, "these are packed"
    fits = sum(map(os.path.getsize, packed.shards)) < free_memory()
    if packed.kind == "crops":
        fill = _decoder(_mapped(packed) if fits else _read(packed), shape)
    else:
        fill = _copier(_mapped(packed)) if fits else _reader(packed)
    _, _, shards, offsets, lengths = packed.records

    def load(records: np.ndarray, flips: np.ndarray) -> np.ndarray:
        crops = rooms.take((len(records), *shape))
        places = zip(shards[records].tolist(), offsets[records].tolist(), lengths[records].tolist(), strict=True)
        done = 0
        try:
            for crop, (shard, offset, length) in zip(crops, places, strict=True):
                fill(crop, shard, offset, length)
                done += 1
        except (OSError, ValueError) as error:
            raise ValueError(f"{packed_name(catalog, records[done])}: {error}") from None
        for number in np.flatnonzero(flips).tolist():
            cv2.flip(crops[number], 1, dst=crops[number])
        return crops

    return load


def _mapped(packed: Packed) -> Contents:
    """Where the page cache comes to hold all of it: mapped, it costs nothing; a call to read, 9 microseconds a JPEG."""
    allow_open(len(packed.shards))
    maps = [np.memmap(path, np.uint8, "r").data for path in packed.shards]
    return lambda shard, offset, length: maps[shard][offset : offset + length]


def _read(packed: Packed) -> Contents:
    """Where it does not, a read asks storage for all of a crop at once, a map for one page after the other."""
    files = Files(packed.shards)
    return lambda shard, offset, length: os.pread(files[shard], length, offset)


def _decoder(contents: Contents, shape: tuple[int, int, int]) -> Fill:
    import simplejpeg

    colorspace = "RGB" if shape[2] == 3 else "GRAY"

    def decode(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        found = contents(shard, offset, length)
        if len(found) != length:
            raise ValueError(CUT)
        decoded = simplejpeg.decode_jpeg(found, colorspace, buffer=crop)
        if decoded.shape != shape:
            raise ValueError(f"it is of height, width and channels {decoded.shape}, not {shape}")

    return decode


def _copier(contents: Contents) -> Fill:
    def copy(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        found = contents(shard, offset, length)
        if len(found) != length:
            raise ValueError(CUT)
        crop[:] = np.frombuffer(found, np.uint8).reshape(crop.shape)

    return copy


def _reader(packed: Packed) -> Fill:
    """As _copier of _read, with a copy less."""
    files = Files(packed.shards)

    def read(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        if os.preadv(files[shard], [crop.data], offset) != length:
            raise ValueError(CUT)

    return read


def packed_name(catalog: Catalog, record: int) -> str:
    """A record, for a message: where it is, and of what."""
    packed = catalog.packed
    assert packed is not None, "it is of records"
    return f"{packed.name(record)}, of {catalog.paths[int(packed.records.image[record])]}"


class Rooms:
    """Arrays that are used again once nobody holds them: fresh memory costs as much as the copy into it."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """uint8 of that shape, aligned, of any content."""
        size = math.prod(shape)
        if size == 0:
            return np.empty(shape, np.uint8)
        room = self._reuse(size)
        if room is None:
            room = np.empty(size + ALIGNMENT - 1, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        # The base of all views of it, whoever makes them, since it is not the array itself that it is made from.
        base = np.frombuffer(room.data[start : start + size], np.uint8)
        weakref.finalize(base, self._free.append, room).atexit = False
        return base.reshape(shape)

    def _reuse(self, size: int) -> np.ndarray | None:
        try:
            room = self._free.pop()
        except IndexError:
            return None
        return room if len(room) >= size + ALIGNMENT - 1 else None


def file_loader(catalog: Catalog) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """From images (int64 [n]) to their files (bytes [n]), and heights and widths (int32 [n, 2])."""
    packed = catalog.packed
    assert packed is not None, "these are packed"
    files = Files(packed.shards)
    _, _, shards, offsets, lengths = packed.records

    def load(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        contents, sizes = np.empty(len(images), object), np.empty((len(images), 2), np.int32)
        places = zip(shards[images].tolist(), offsets[images].tolist(), lengths[images].tolist(), strict=True)
        for number, (shard, offset, length) in enumerate(places):
            found = contents[number] = os.pread(files[shard], length, offset)
            if len(found) != length:
                raise ValueError(f"{packed_name(catalog, images[number])}: {CUT}")
            header = jpeg_header(found[:START])
            sizes[number] = (header or header_of(found, packed_name(catalog, images[number])))[:2]
        return contents, sizes

    return load
