"""The boxes of many images at once: read before training, to count crops, or where every box is a sample of its own."""

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

# An XML takes some 0.2 ms: up to this many are all read to count an epoch's crops, otherwise this many of them.
COUNT_AT_MOST = 5000
BATCH = 64


class CropCount(NamedTuple):
    """How many crops an epoch holds."""

    crops: int
    exact: bool


def count_crops(catalog: Catalog, config: DataConfig, world: World) -> CropCount:
    """How many crops one epoch of `catalog` holds over all ranks; the same on every rank.

    Exact where every image gives one, where all boxes are known, or with at most COUNT_AT_MOST XMLs, which are read;
    otherwise estimated from that many, evenly spread over the list. Of lists that are mixed, what is to be expected.
    """
    one_each = config.crop_for(catalog.split) in ("center", "full")
    one_each |= config.crop_for(catalog.split) == "random_resized" and not catalog.by_object
    if one_each or catalog.by_box:
        return CropCount(catalog.samples, exact=True)
    order = catalog.order(config)
    if not isinstance(order, Mixture):
        return _count(catalog, range(len(catalog)), world)
    found = [_count(catalog, each.images, world).crops / len(each.images) for each in catalog.lists]
    per_place = np.dot(found, order.shares) / sum(order.shares)
    return CropCount(round(per_place * order.count), exact=False)


def _count(catalog: Catalog, images: range, world: World) -> CropCount:
    """Of some images, each once."""
    if catalog.boxes is not None:
        first, last = np.searchsorted(catalog.boxes.images, [images.start, images.stop])
        return CropCount(int(last - first), exact=True)
    annotated = np.flatnonzero(catalog.annotated[images.start : images.stop]) + images.start
    plain = 0 if catalog.by_object else len(images) - len(annotated)
    step = max(1, -(-len(annotated) // COUNT_AT_MOST))
    chosen = annotated[::step]
    found = world.from_rank0(lambda: len(_read(catalog, chosen, show=world.rank == 0).labels)) if len(chosen) else 0
    return CropCount(plain + round(found * len(annotated) / max(1, len(chosen))), exact=step == 1)


def read_boxes(catalog: Catalog, world: World) -> Boxes:
    """Every box of `catalog`, the same on every rank; the ranks share the reading.

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
    """The boxes of `items`, all of which have an XML; in parallel, and without the GIL but for `catalog.by_lxml`."""
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
        # An image is opened only where its XML is whole but does not state its size.
        with tf.control_dependencies([objects.boxes]):
            unstated = tf.where(tf.reduce_any(objects.sizes <= 0, axis=1) & tf.not_equal(paths, ""))
        opened = lookup.path(tf.gather_nd(items, unstated))
        real = tf.map_fn(size, opened, fn_output_signature=tf.TensorSpec([2], tf.int32))
        sizes = tf.tensor_scatter_nd_update(tf.ones_like(objects.sizes, tf.int32), unstated, real)
        found = find_targets(objects, lookup.label(items), sizes, catalog)
        return found._replace(images=tf.gather(items, found.images))

    dataset = tf.data.Dataset.from_tensor_slices(items.astype(np.int64)).batch(BATCH)
    batches = dataset.map(targets, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    found = [Targets(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))]
    try:
        found += progress(batches.as_numpy_iterator(), -(-len(items) // BATCH), "reading boxes", "batch", show)
    except tf.errors.OpError as error:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {reason(error)}") from error
    return Boxes(*map(np.concatenate, zip(*found, strict=True)))
