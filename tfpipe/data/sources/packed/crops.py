"""Reads records of packed data, many per call: crops one batch per call, directly into the batch's buffer."""

import math
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.crops import Crops, crop_seeds
from tfpipe.data.images.decode import mirror_in_place
from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.data.images.windows import flipped
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.parallelism import calls_at_once
from tfpipe.data.runtime.stage import stage
from tfpipe.data.sources.packed.mmap import Mapped, map_files
from tfpipe.data.sources.packed.shards import OpenShards, Shards
from tfpipe.data.sources.source import Loader
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError
from tfpipe.util.buffer_pool import BufferPool
from tfpipe.util.memory import free_memory
from tfpipe.util.retry import retried

CUT = "the shard ends within it"


Contents = Callable[[int, int, int], bytes | memoryview]
"""(shard, offset, length) -> the record's bytes. Raises OSError or ValueError."""
FillOne = Callable[[np.ndarray, int, int, int], None]
"""(array, shard, offset, length): writes the record's pixels into the array. Raises OSError or ValueError."""
Fill = Callable[[np.ndarray, np.ndarray], None]
"""(array [k, ...], records (int64 [k])): writes the records' pixels into the array. Raises a ValueError that names the
record."""


class CropRequests(NamedTuple):
    """Crops to be read."""

    records: tf.Tensor  # int64 [k]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number of the crop in its image


def find_crops(shards: Shards, catalog: Catalog) -> Callable[[SampleRef], CropRequests]:
    """Returns an in-graph function: `SampleRef`s (fields int64 [n]) -> the crops that they request."""
    records = shards.records
    first = np.arange(catalog.samples + 1) if catalog.by_box else records.offsets(len(catalog))
    with tf.device("CPU"):  # where tf.data runs
        first, labels = tf.constant(first, tf.int64), tf.constant(records.label)

    def find(visits: SampleRef) -> CropRequests:
        begin = tf.gather(first, visits.item)
        chosen = tf.ragged.range(begin + visits.first_crop, tf.gather(first, visits.item + 1))
        own = chosen.value_rowids()
        numbers = chosen.values - tf.gather(begin, own)
        positions = tf.stack([tf.gather(visits.position, own), numbers], axis=1)
        return CropRequests(chosen.values, tf.gather(labels, chosen.values), positions)

    return find


def gather_crops(
    dataset: tf.data.Dataset, shards: Shards, catalog: Catalog, config: DataConfig, world: World
) -> tf.data.Dataset:
    """Maps batches of Wanted to batches of Crops: reads them, decodes JPEGs, mirrors.

    Python is called once a batch. Its loop takes 6 microseconds a crop; decoding one of 224x224 takes 270.
    """
    shape = (*config.crop_image_size, config.num_channels)
    load = loader(shards, catalog.paths, shape)
    mirror = bool(config.flip) and catalog.split == "train"

    @stage("gather")
    def gather_batch(wanted: CropRequests) -> Crops:
        if mirror:
            flips = flipped(crop_seeds(2 * config.seed + 1, wanted.positions[:, 0], wanted.positions[:, 1]))
        else:
            flips = tf.zeros(0, tf.bool)
        images = tf.numpy_function(load, [wanted.records, flips], tf.uint8, stateful=False)
        images = tf.ensure_shape(images, [wanted.records.shape[0], *shape])
        return Crops(images, wanted.labels, wanted.positions)

    return dataset.map(gather_batch, num_parallel_calls=calls_at_once(config, world).decode, name="fetch")


def loader(
    shards: Shards, images: FileList, shape: tuple[int, int, int]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns a function: (records (int64 [k]), which to mirror (bool [k], or [0] for none)) -> uint8 [k, *shape].

    The arrays are aligned, so that TensorFlow adopts them without a copy; their memory is reused after it is released.

    Raises:
        TfpipeError: a shard cannot be mapped, or has become shorter than it was; the message names it.
    """
    import cv2

    cv2.setNumThreads(1)
    fill, buffers = _filler(shards, images, shape), BufferPool()

    def load(records: np.ndarray, flips: np.ndarray) -> np.ndarray:
        crops = buffers.take((len(records), *shape))
        fill(crops, records)
        mirror_in_place(crops, flips)
        return crops

    return load


def _filler(packed: Shards, images: FileList, shape: tuple[int, int, int]) -> Fill:
    mapped = _mapped(packed, images, math.prod(shape) if packed.kind == "raw" else 1)
    if packed.kind == "crops":
        return _each(packed, images, _decoder(_read(packed) if mapped is None else _sliced(mapped), shape))
    return _each(packed, images, _copier(packed)) if mapped is None else _taken(packed, mapped, math.prod(shape))


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


def _taken(packed: Shards, mapped: Mapped, size: int) -> Fill:
    """Returns a Fill with one call per batch: a call per crop takes 1.5 times as long with two threads (GIL)."""
    places = mapped.starts[packed.records.shard] + packed.records.offset
    first = int(places[0]) % size
    assert not ((places - first) % size).any(), "NumPy's headers are all of one length"
    rows = mapped.data[first : first + (len(mapped.data) - first) // size * size].reshape(-1, size)
    numbers = (places - first) // size

    def take(crops: np.ndarray, records: np.ndarray) -> None:
        # With the mode "raise", NumPy would copy twice.
        np.take(rows, numbers[records], axis=0, out=crops.reshape(-1, size), mode="clip")

    return take


def _each(packed: Shards, images: FileList, fill: FillOne) -> Fill:
    """Returns a Fill that calls `fill` record by record; its errors name the record."""
    _, _, shards, offsets, lengths = packed.records

    def fill_each(crops: np.ndarray, records: np.ndarray) -> None:
        places = zip(shards[records].tolist(), offsets[records].tolist(), lengths[records].tolist(), strict=True)
        for record, crop, place in zip(records, crops, places, strict=True):
            try:
                fill(crop, *place)
            except (OSError, ValueError) as error:
                raise ValueError(f"{packed.name(record, images)}: {error}") from None

    return fill_each


def _sliced(mapped: Mapped) -> Contents:
    data, starts = mapped.data.data, mapped.starts.tolist()
    return lambda shard, offset, length: data[starts[shard] + offset : starts[shard] + offset + length]


def _read(packed: Shards) -> Contents:
    files = OpenShards(packed.paths)

    def read(shard: int, offset: int, length: int) -> bytes:
        contents = os.pread(files[shard], length, offset)
        if len(contents) != length:
            raise ValueError(CUT)
        return contents

    return read


def _decoder(contents: Contents, shape: tuple[int, int, int]) -> FillOne:
    import simplejpeg

    colorspace = "RGB" if shape[2] == 3 else "GRAY"

    def decode(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        decoded = simplejpeg.decode_jpeg(contents(shard, offset, length), colorspace, buffer=crop)
        if decoded.shape != shape:
            raise ValueError(f"it is of height, width and channels {decoded.shape}, not {shape}")

    return decode


def _copier(packed: Shards) -> FillOne:
    """Returns a FillOne that reads pixels directly into the array."""
    files = OpenShards(packed.paths)

    def read(crop: np.ndarray, shard: int, offset: int, length: int) -> None:
        if os.preadv(files[shard], [crop.data], offset) != length:
            raise ValueError(CUT)

    return read


def file_loader(shards: Shards, paths: FileList) -> Loader:
    """Returns a function: images (int64 [n]) -> their files (bytes [n]), and heights and widths (int32 [n, 2])."""
    files = OpenShards(shards.paths)
    _, _, numbers, offsets, lengths = shards.records

    def load(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        contents, sizes = np.empty(len(images), object), np.empty((len(images), 2), np.int32)
        places = zip(numbers[images].tolist(), offsets[images].tolist(), lengths[images].tolist(), strict=True)
        for number, (shard, offset, length) in enumerate(places):
            file = contents[number] = os.pread(files[shard], length, offset)
            if len(file) != length:
                raise ValueError(f"{shards.name(images[number], paths)}: {CUT}")
            header = jpeg_header(file[:START])
            sizes[number] = (header or header_of(file, shards.name(images[number], paths)))[:2]
        return contents, sizes

    return load
