"""Crops kept as they were cut and resized, so that later epochs neither read, parse nor decode: `data.cache_stage`.

Kept by sample, all crops of one together, as a string: a mark, their labels, their pixels.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.cache import Store, open_stores
from tfpipe.data.catalog import Catalog
from tfpipe.data.crops import from_first
from tfpipe.distributed import World

KIND = ".crops"
# So that the string of a sample that gives no crop is not the empty one, which means that nothing is kept.
MARK = b"+"
LABEL_BYTES = 4
MAX_BYTES = 2**31 - 1


class Cut(NamedTuple):
    """All crops of n samples, one after the other."""

    pixels: tf.Tensor  # uint8 [k, height, width, channels]
    images: tf.Tensor  # int64 [k]: number of the sample, ascending
    numbers: tf.Tensor  # int64 [k]: of the crop among its sample's
    labels: tf.Tensor  # int32 [k]


def crop_store(catalog: Catalog, config: DataConfig, world: World) -> Store | None:
    """Where the crops of `catalog` are kept; None unless `data.cache_stage` is "crops" and there is a cache.

    Raises:
        ConfigError: as cache.open_stores.
    """
    if config.cache is None or config.cache_stage != "crops":
        return None
    return open_stores(catalog, config, world, (KIND,), catalog.samples, f"crops-{fingerprint(catalog, config)}")[KIND]


def fingerprint(catalog: Catalog, config: DataConfig) -> str:
    """Of all that the crops of a sample depend on but the files' contents: another config never reads them."""
    shape = (*config.crop_image_size, config.num_channels)
    how = (config.crop_for(catalog.split), config.center_fraction, config.resize, config.native, config.scaled_decode)
    of = (catalog.paths.digest, catalog.paths.folders, catalog.annotation_folders, catalog.classes)
    by = (catalog.split, catalog.by_lxml, catalog.by_box)
    digest = hashlib.sha256(repr((shape, how, of, by)).encode())
    for array in (catalog.annotated, catalog.labels, *(catalog.boxes or ())):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def keeping(cut: Callable[..., Cut], store: Store, shape: tuple[int, int, int]) -> Callable[..., Cut]:
    """`cut` for those samples alone of which nothing is kept; their crops are kept then.

    Args:
        cut: from n samples, a NamedTuple of tensors that has the fields `visit` and `kept`, to their crops from
            `visit.first_crop` on.
        store: keeps them.
        shape: of a crop.
    """

    def find_or_cut(samples: Any) -> Cut:
        new = tf.where(tf.equal(samples.kept, ""))[:, 0]

        def cut_new() -> tf.Tensor:
            those = tf.nest.map_structure(lambda each: tf.gather(each, new), samples)
            # All crops of a sample are kept, also where an interrupted run wants the last of them alone.
            those = those._replace(visit=those.visit._replace(first_crop=tf.zeros_like(those.visit.first_crop)))
            return tf.tensor_scatter_nd_update(samples.kept, new[:, None], keep(store, those.visit.item, cut(those)))

        kept = unpack(tf.cond(tf.size(new) > 0, cut_new, lambda: samples.kept), shape)
        return from_first(kept, samples.visit.first_crop)

    return find_or_cut


def find(store: Store, item: tf.Tensor) -> tf.Tensor:
    """string: what is kept of a sample (int64), "" where nothing is."""
    return store.find(item, tf.as_string(item))


def keep(store: Store, items: tf.Tensor, crops: Cut) -> tf.Tensor:
    """string [n]: the crops of the samples `items` (int64 [n]), packed, once they are kept."""

    def keep_one(number: tf.Tensor) -> tf.Tensor:
        own = tf.where(tf.equal(crops.images, number))[:, 0]
        labels, pixels = tf.gather(crops.labels, own), tf.gather(crops.pixels, own)
        raw = tf.concat([tf.reshape(tf.bitcast(labels, tf.uint8), [-1]), tf.reshape(pixels, [-1])], axis=0)
        # No op turns a tensor into its bytes, but its serialization ends in them.
        serial = tf.io.serialize_tensor(raw)
        contents = MARK + tf.strings.substr(serial, tf.strings.length(serial) - tf.size(raw), tf.size(raw))
        return store.keep(items[number], tf.as_string(items[number]), contents)

    return tf.map_fn(keep_one, tf.range(tf.size(items, tf.int64)), fn_output_signature=tf.string)


def unpack(kept: tf.Tensor, shape: tuple[int, int, int]) -> Cut:
    """The crops in what is kept of n samples (string [n])."""
    counts = (tf.strings.length(kept) - len(MARK)) // (LABEL_BYTES + math.prod(shape))
    images = tf.repeat(tf.range(tf.size(kept, tf.int64)), counts)
    numbers = tf.range(tf.size(images, tf.int64)) - tf.gather(
        tf.cumsum(tf.cast(counts, tf.int64), exclusive=True), images
    )
    begin, end = tf.fill(tf.shape(counts), len(MARK)), len(MARK) + LABEL_BYTES * counts
    labels = tf.strings.reduce_join(tf.strings.substr(kept, begin, end - begin))
    pixels = tf.strings.reduce_join(tf.strings.substr(kept, end, tf.fill(tf.shape(end), MAX_BYTES)))
    pixels = tf.reshape(tf.io.decode_raw(pixels, tf.uint8), [-1, *shape])
    return Cut(pixels, images, numbers, tf.io.decode_raw(labels, tf.int32))
