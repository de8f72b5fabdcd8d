"""The read stage: gets the bytes of images and XMLs from files, packed files or URLs; bound by storage latency.

What is stored about images, their entry points, is looked up for the decoder.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.locate import SamplePaths, image_finder
from tfpipe.data.catalog.table import StoredTable
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.columns import Lines, columns
from tfpipe.data.runtime.marks import mark_read
from tfpipe.data.runtime.parallelism import calls_at_once
from tfpipe.data.runtime.stage import skip_failed_elements, stage
from tfpipe.data.sources.cache import reader
from tfpipe.data.sources.entries import find_entries
from tfpipe.data.split import Split
from tfpipe.util.retry import retried


class Encoded(NamedTuple):
    """An image as read; in batches of n, each field has a leading dimension n."""

    visit: SampleRef  # position in the stream, item, and number of the first crop wanted
    jpeg: tf.Tensor  # string: the file's bytes
    size: tf.Tensor  # int32 [2]: height and width; 0: unknown until `measured` or a decoder looks
    annotation: tf.Tensor  # string: the file of its mask or XML; "" if there is none
    annotation_path: tf.Tensor  # string
    label: tf.Tensor  # int32: class number, or BY_OBJECT


def read_files(dataset: tf.data.Dataset, split: Split) -> tf.data.Dataset:
    """Reads files, `SamplePaths` -> `Encoded`."""
    config, annotated = split.config, split.catalog.reads_annotations
    load = reader(split)

    @stage("read")
    def read_one(image: SamplePaths) -> Encoded:
        jpeg = load(image.item, image.path, ".jpg")
        annotation = load(image.item, image.annotation_path, ".xml") if annotated else tf.constant("")
        return Encoded(image.visit, jpeg, tf.zeros(2, tf.int32), annotation, image.annotation_path, image.label)

    dataset = waiting(dataset, read_one, calls_at_once(config, split.world).read)
    return dataset.ignore_errors() if config.on_error == "skip" else dataset


def read_records(
    dataset: tf.data.Dataset,
    split: Split,
    load: Callable[..., Any],
    load_masks: Callable[..., Any] | None,
    per_call: int,
) -> tf.data.Dataset:
    """Reads images by `load`, and masks, if any, by `load_masks`, `SamplePaths` -> `Encoded`; their boxes are known.

    Each call of Python is for `per_call` images.

    An image of 115 kB takes 18 microseconds, 7 of them with the GIL; a small mask takes 3.
    """

    @stage("read")
    def read_some(images: SamplePaths) -> Encoded:
        jpegs, sizes = tf.numpy_function(retried(load), [images.item], (tf.string, tf.int32), stateful=False)
        jpegs, sizes = tf.ensure_shape(jpegs, images.item.shape), tf.ensure_shape(sizes, [*images.item.shape, 2])
        nothing = tf.fill(tf.shape(images.item), "")
        if load_masks is None:
            return Encoded(images.visit, jpegs, sizes, nothing, nothing, images.label)
        masks = tf.numpy_function(retried(load_masks), [images.item], tf.string, stateful=False)
        masks = tf.ensure_shape(masks, images.item.shape)
        return Encoded(images.visit, jpegs, sizes, masks, images.annotation_path, images.label)

    if split.config.on_error == "skip":
        read_some = skip_failed_elements(read_some)
    return waiting(dataset.batch(per_call), read_some, calls_at_once(split.config, split.world).read).unbatch()


def read_each(dataset: tf.data.Dataset, split: Split, read: Callable[[tf.Tensor], tf.Tensor]) -> tf.data.Dataset:
    """Reads images by `read`, in graph, `SamplePaths` -> `Encoded`; their boxes are known."""

    @stage("read")
    def read_one(image: SamplePaths) -> Encoded:
        nothing, unknown = tf.constant(""), tf.zeros(2, tf.int32)
        return Encoded(image.visit, read(image.item), unknown, nothing, nothing, image.label)

    return waiting(dataset, read_one, calls_at_once(split.config, split.world).read)


def waiting(dataset: tf.data.Dataset, read: Callable[..., Encoded], calls: int | None) -> tf.data.Dataset:
    """Maps `read` over the elements with `calls` in parallel; None for one at a time, in the caller's own thread.

    Uses threads outside the pipeline's pool: in the pool, waiting reads would block threads that decoders need.
    """
    unbounded = calls is not None
    return dataset.map(mark_read(read), num_parallel_calls=calls, use_unbounded_threadpool=unbounded, name="read")


def measured(dataset: tf.data.Dataset, config: DataConfig) -> tf.data.Dataset:
    """Finds the sizes of images, `Encoded` -> `Encoded`; in the pipeline that tfpipe builds, decoders do that."""
    sizes = choose_decoder(config).sizes

    @stage("read")
    def measure(encoded: Encoded) -> Encoded:
        return encoded._replace(size=sizes(encoded.jpeg[None], encoded.size[None])[0])

    dataset = dataset.map(measure)
    return dataset.ignore_errors() if config.on_error == "skip" else dataset


class EntryPoints:
    """The entry points of a split's images, looked up in graph where they are in memory."""

    def __init__(self, table: StoredTable, catalog: Catalog) -> None:
        """Looks up in a table of find_entries."""
        self._lines = Lines(*columns(table.columns["text"], table.columns["starts"], sent=False))
        self._image_of = image_finder(catalog, sent=False)

    def at(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [n]: the entry points of the samples `items` (int64 [n]), "" for an image without any."""
        return self._lines.at(self._image_of(items))


def known_entries(config: DataConfig, catalog: Catalog, *, show: bool) -> EntryPoints | None:
    """Returns the entry points of a split's images, None if there are none; `show` as in find_entries.

    None, too, if nothing here uses them: other processes decode (`data.service`), or TensorFlow's ops.
    """
    if config.service is not None or not config.native:
        return None
    table = find_entries(config, catalog, show=show)
    return None if table is None else EntryPoints(table, catalog)
