"""Caches crops after resizing, so that later epochs neither read, parse nor decode (`data.cache_stage` "crops").

All crops of a sample form one string: a mark, their labels, their pixels.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.data.images.crops import from_first
from tfpipe.data.runtime.store import Store
from tfpipe.data.sources.cache import open_stores
from tfpipe.data.split import Split

KIND = ".crops"
# Keeps the string of a sample without crops from being empty, which would mean that nothing is cached.
MARK = b"+"
LABEL_BYTES = 4
MAX_BYTES = 2**31 - 1


class CropBatch(NamedTuple):
    """All crops of n samples, one after the other."""

    pixels: tf.Tensor  # uint8 [k, height, width, channels]
    images: tf.Tensor  # int64 [k]: number of the sample, ascending
    numbers: tf.Tensor  # int64 [k]: number of the crop in its sample
    labels: tf.Tensor  # int32 [k]
    frame: Any = ()  # as in Origin; not kept
    mask: Any = ()


def crop_store(split: Split) -> Store | None:
    """Opens the store of a split's crops; None unless `data.cache` is set and `data.cache_stage` is "crops".

    Raises ConfigError as cache.open_stores does.
    """
    if split.config.cache is None or split.config.cache_stage != "crops":
        return None
    return open_stores(split, (KIND,), split.catalog.samples, f"crops-{crops_fingerprint(split)}")[KIND]


def crops_fingerprint(split: Split) -> str:
    """Returns a hash of everything but file contents that determines the crops: other settings use another cache."""
    catalog, config = split.catalog, split.config
    shape = (*config.crop_image_size, config.num_channels)
    crop = (config.crop_for(catalog.split), config.center_fraction, config.stored_resize, config.native, False)
    lists = (catalog.paths.digest, catalog.paths.folders, catalog.annotation_folders, catalog.classes)
    flags = (catalog.split, False, catalog.by_box)  # these two constants stay for caches made before
    level, center = config.letterbox_for(catalog.split), config.crop_for(catalog.split) == "center"
    more = [*([] if level is None else [level]), *(["of the resized image"] if center else [])]
    digest = hashlib.sha256(repr((shape, crop, lists, flags, *more)).encode())
    for array in (catalog.annotated, catalog.labels, *(catalog.boxes or ())):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def cached(cut: Callable[..., CropBatch], store: Store, shape: tuple[int, int, int]) -> Callable[..., CropBatch]:
    """Wraps `cut`: calls it only for samples whose crops are not cached, and caches the crops it returns.

    `cut` maps n samples, a NamedTuple of tensors with the fields `visit` and `kept`, to their crops from
    `visit.first_crop` on; `shape` is the height, width and channels of a crop.
    """

    def find_or_cut(samples: Any) -> CropBatch:
        new = tf.where(tf.equal(tf.strings.length(samples.kept), 0))[:, 0]

        def cut_new() -> tf.Tensor:
            absent = tf.nest.map_structure(lambda tensor: tf.gather(tensor, new), samples)
            # Caches all crops of a sample, even if a resumed run needs only the last of them.
            absent = absent._replace(visit=absent.visit._replace(first_crop=tf.zeros_like(absent.visit.first_crop)))
            return tf.tensor_scatter_nd_update(samples.kept, new[:, None], keep(store, absent.visit.item, cut(absent)))

        kept = unpack(tf.cond(tf.size(new) > 0, cut_new, lambda: samples.kept), shape)
        return from_first(kept, samples.visit.first_crop)

    return find_or_cut


def find(store: Store, item: tf.Tensor) -> tf.Tensor:
    """Returns the cached string of a sample (int64), "" if it has none."""
    return store.find(item, tf.as_string(item))


def keep(store: Store, items: tf.Tensor, crops: CropBatch) -> tf.Tensor:
    """Caches the crops of the samples `items` (int64 [n]), then returns their strings (string [n])."""

    def keep_one(number: tf.Tensor) -> tf.Tensor:
        image_crops = tf.where(tf.equal(crops.images, number))[:, 0]
        labels, pixels = tf.gather(crops.labels, image_crops), tf.gather(crops.pixels, image_crops)
        raw = tf.concat([tf.reshape(tf.bitcast(labels, tf.uint8), [-1]), tf.reshape(pixels, [-1])], axis=0)
        # No op converts a tensor to its bytes, but its serialized proto ends with them.
        serial = tf.io.serialize_tensor(raw)
        contents = MARK + tf.strings.substr(serial, tf.strings.length(serial) - tf.size(raw), tf.size(raw))
        return store.keep(items[number], tf.as_string(items[number]), contents)

    return tf.map_fn(keep_one, tf.range(tf.size(items, tf.int64)), fn_output_signature=tf.string)


def unpack(kept: tf.Tensor, shape: tuple[int, int, int]) -> CropBatch:
    """Converts the cached strings of n samples (string [n]) to their crops."""
    counts = (tf.strings.length(kept) - len(MARK)) // (LABEL_BYTES + math.prod(shape))
    images = tf.repeat(tf.range(tf.size(kept, tf.int64)), counts)
    numbers = tf.range(tf.size(images, tf.int64)) - tf.gather(
        tf.cumsum(tf.cast(counts, tf.int64), exclusive=True), images
    )
    begin, end = tf.fill(tf.shape(counts), len(MARK)), len(MARK) + LABEL_BYTES * counts
    labels = tf.strings.reduce_join(tf.strings.substr(kept, begin, end - begin))
    pixels = tf.strings.reduce_join(tf.strings.substr(kept, end, tf.fill(tf.shape(end), MAX_BYTES)))
    pixels = tf.reshape(tf.io.decode_raw(pixels, tf.uint8), [-1, *shape])
    return CropBatch(pixels, images, numbers, tf.io.decode_raw(labels, tf.int32))
