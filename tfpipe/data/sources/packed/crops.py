"""Reads records of packed data, many per call: crops one batch per call, directly into the batch's buffer."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.augment import choose_augment
from tfpipe.data.images.crops import ALL, Crops, crop_seeds
from tfpipe.data.images.windows import draw_flips
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.columns import columns
from tfpipe.data.runtime.parallelism import calls_at_once
from tfpipe.data.runtime.stage import stage
from tfpipe.data.sources.packed.pixels import loader
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.split import Split
from tfpipe.native import native
from tfpipe.util.open_files import allow_open
from tfpipe.util.tensorflow_api import unbounded_threads


class CropRequests(NamedTuple):
    """Crops to be read."""

    records: tf.Tensor  # int64 [k]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number of the crop in its image


def find_crops(shards: Shards, catalog: Catalog) -> Callable[[SampleRef], CropRequests]:
    """Returns an in-graph function: `SampleRef`s (fields int64 [n]) -> the crops that they request."""
    records = shards.records
    first = np.arange(catalog.samples + 1)
    if not catalog.by_box:
        first = np.searchsorted(records.image, np.arange(len(catalog) + 1))
    with tf.device("CPU"):  # where tf.data runs
        first, labels = tf.constant(first, tf.int64), tf.constant(records.label)

    def find(visits: SampleRef) -> CropRequests:
        begin = tf.gather(first, visits.item)
        records = tf.ragged.range(begin + visits.first_crop, tf.gather(first, visits.item + 1))
        owners = records.value_rowids()
        numbers = records.values - tf.gather(begin, owners)
        positions = tf.stack([tf.gather(visits.position, owners), numbers], axis=1)
        return CropRequests(records.values, tf.gather(labels, records.values), positions)

    return find


def gather_crops(dataset: tf.data.Dataset, split: Split, shards: Shards) -> tf.data.Dataset:
    """Maps batches of `CropRequests` to batches of `Crops`: reads them, decodes JPEGs, mirrors, augments.

    Python is called once a batch, and so is the decoder in C.
    """
    config = split.config
    shape = (*config.crop_image_size, config.num_channels)
    load = loader(shards, split.catalog.paths, shape)
    mirror = bool(config.flip) and split.training
    augment = choose_augment(config, training=split.training)

    @stage("gather")
    def gather_batch(requests: CropRequests) -> Crops:
        if mirror:
            flips = draw_flips(crop_seeds(2 * config.seed + 1, requests.positions[:, 0], requests.positions[:, 1]))
        else:
            flips = tf.zeros(0, tf.bool)
        images = tf.numpy_function(load, [requests.records, flips], tf.uint8, stateful=False)
        images = tf.ensure_shape(images, [requests.records.shape[0], *shape])
        if augment is not None:
            images = augment(images, requests.positions, ALL)
        return Crops(images, requests.labels, requests.positions)

    calls = calls_at_once(config, split.world).decode
    if shards.remote is None or calls is None:
        return dataset.map(gather_batch, num_parallel_calls=calls, name="fetch")
    # Enough batches to keep all requests busy, in threads outside the pipeline's pool, since they mostly wait.
    calls += 2 * -(-config.remote.concurrency // config.batch_size)
    return dataset.map(gather_batch, num_parallel_calls=calls, name="fetch", **unbounded_threads())


def range_reader(config: DataConfig, shards: Shards) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns an in-graph function: image (int64 []) -> its file, read by the library in C; None where Python has to.

    Random crops by entry points have 1.1 of the rate that they have with Python. Python reads what is behind URLs,
    inflates what is deflated, and, if images that fail are skipped, tells errors that may pass from others.
    """
    if shards.remote or shards.deflated or config.on_error == "skip" or config.service is not None:
        return None
    allow_open(len(shards.paths))
    records = shards.records
    places = columns(records.shard.astype(np.int32, copy=False), records.offset, records.length, sent=False)
    with tf.device("CPU"):  # where tf.data runs
        paths = tf.constant(shards.paths)

    def read(item: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(native().range(paths, *(place.at(item) for place in places)), [])

    return read
