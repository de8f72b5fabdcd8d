"""Reads the boxes of many images before training: to count crops, or to make every box a sample."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Boxes, Catalog
from tfpipe.data.crops import WHOLE_IMAGE, Targets, find_targets
from tfpipe.data.fetching import fetching
from tfpipe.data.images import image_size
from tfpipe.data.lookup import Lookup
from tfpipe.data.mixture import Mixture
from tfpipe.data.reasons import reason
from tfpipe.data.scopes import stage
from tfpipe.data.xml_graph import parser
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.progress import progress

# At most this many XMLs are read to count an epoch's crops, at 0.2 ms each.
COUNT_AT_MOST = 5000
BATCH = 64


class CropCount(NamedTuple):
    """The number of crops in an epoch, exact or estimated."""

    crops: int
    exact: bool


def count_crops(catalog: Catalog, config: DataConfig, world: World) -> CropCount:
    """Returns the number of crops in one epoch of `catalog` over all ranks; the same on every rank.

    It is exact if every image gives one crop, all boxes are known, or at most COUNT_AT_MOST images have an XML.
    Otherwise it is estimated from at most that many XMLs, evenly spaced in the list. Mixed lists give an expectation.
    """
    one_each = config.crop_for(catalog.split) in ("center", "full")
    one_each |= config.crop_for(catalog.split) == "random_resized" and not catalog.by_object
    if one_each or catalog.by_box:
        return CropCount(catalog.samples, exact=True)
    order = catalog.order(config)
    if not isinstance(order, Mixture):
        return _count(catalog, range(len(catalog)), world)
    per_image = [_count(catalog, part.images, world).crops / len(part.images) for part in catalog.lists]
    mean = np.dot(per_image, order.shares) / sum(order.shares)
    return CropCount(round(mean * order.count), exact=False)


def _count(catalog: Catalog, images: range, world: World) -> CropCount:
    """Counts the crops of `images`, each image visited once."""
    if catalog.boxes is not None:
        first, last = np.searchsorted(catalog.boxes.images, [images.start, images.stop])
        return CropCount(int(last - first), exact=True)
    annotated = np.flatnonzero(catalog.annotated[images.start : images.stop]) + images.start
    plain = 0 if catalog.by_object else len(images) - len(annotated)
    step = max(1, -(-len(annotated) // COUNT_AT_MOST))
    chosen = annotated[::step]
    crops = world.from_rank0(lambda: len(_read(catalog, chosen, show=world.rank == 0).labels)) if len(chosen) else 0
    return CropCount(plain + round(crops * len(annotated) / max(1, len(chosen))), exact=step == 1)


def read_boxes(catalog: Catalog, world: World) -> Boxes:
    """Returns every box of `catalog`, the same on every rank; the ranks share the reading.

    Raises:
        ConfigError: an XML cannot be used; names it.
    """
    annotated = np.flatnonzero(catalog.annotated)
    alone = world.backend == "none"
    share = annotated if alone else annotated[world.rank :: world.size]
    parts = world.gather(_read(catalog, share, show=world.rank == 0))
    if not catalog.by_object:
        plain = np.flatnonzero(~catalog.annotated)
        parts.append(Boxes(plain, np.repeat(WHOLE_IMAGE, len(plain), axis=0), catalog.labels[plain]))
    images, boxes, labels = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(images, kind="stable")
    return Boxes(images[order].astype(np.int32), boxes[order], labels[order])


def _read(catalog: Catalog, items: np.ndarray, show: bool) -> Boxes:
    """Reads the boxes of `items`, which all have an XML, in parallel and, unless `catalog.by_lxml`, without the GIL."""
    lookup, parse = Lookup(catalog), parser(catalog.by_lxml)
    fetch = None if catalog.remote is None else fetching(catalog)

    def size(path: tf.Tensor) -> tf.Tensor:
        return image_size(tf.io.read_file(path)) if fetch is None else fetch(path[None], [""]).size[0]

    def xmls(paths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if fetch is None:
            return tf.map_fn(tf.io.read_file, paths), paths
        fetched = fetch(tf.zeros_like(paths), paths)
        return fetched.xml, fetched.xml_path

    @stage("boxes")
    def targets(items: tf.Tensor) -> Targets:
        texts, paths = xmls(lookup.annotation(items))
        objects = parse(texts, paths)
        # Opens an image only if its XML states no size, and only once all XMLs of the batch have been parsed.
        with tf.control_dependencies([objects.boxes]):
            unstated = tf.where(tf.reduce_any(objects.sizes <= 0, axis=1) & tf.not_equal(paths, ""))
        opened = lookup.path(tf.gather_nd(items, unstated))
        real = tf.map_fn(size, opened, fn_output_signature=tf.TensorSpec([2], tf.int32))
        sizes = tf.tensor_scatter_nd_update(tf.ones_like(objects.sizes, tf.int32), unstated, real)
        boxes = find_targets(objects, lookup.label(items), sizes, catalog)
        return boxes._replace(images=tf.gather(items, boxes.images))

    dataset = tf.data.Dataset.from_tensor_slices(items.astype(np.int64)).batch(BATCH)
    batches = dataset.map(targets, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    parts = [Targets(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))]
    try:
        parts += progress(batches.as_numpy_iterator(), -(-len(items) // BATCH), "reading boxes", "batch", show)
    except tf.errors.OpError as error:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {reason(error)}") from error
    return Boxes(*map(np.concatenate, zip(*parts, strict=True)))
