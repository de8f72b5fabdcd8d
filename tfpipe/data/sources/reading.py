"""The read stage: gets the bytes of images and XMLs from files, packed files or URLs; bound by storage latency.

What is stored about images, their entry points, is looked up for the decoder.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.locate import SamplePaths, image_finder
from tfpipe.data.catalog.table import StoredTable
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.columns import Lines, columns
from tfpipe.data.runtime.marks import mark_reads
from tfpipe.data.runtime.parallelism import calls_at_once
from tfpipe.data.runtime.stage import stage
from tfpipe.data.split import Split
from tfpipe.util.retry import retried
from tfpipe.util.tensorflow_api import unbounded_threads


class Encoded(NamedTuple):
    """An image as read; in batches of n, each field has a leading dimension n."""

    visit: SampleRef  # position in the stream, item, and number of the first crop wanted
    jpeg: tf.Tensor  # string: the file's bytes
    size: tf.Tensor  # int32 [2]: height and width; 0: unknown until `pipeline.read` or a decoder looks
    annotation: tf.Tensor  # string: the file of its mask or XML; "" if there is none
    annotation_path: tf.Tensor  # string
    label: tf.Tensor  # int32: class number, or BY_OBJECT


def read_in_graph(
    dataset: tf.data.Dataset, split: Split, load: Callable[[SamplePaths], tuple[tf.Tensor, tf.Tensor]]
) -> tf.data.Dataset:
    """Reads images by ops, one at a time, `SamplePaths` -> `Encoded`; `load` reads an image and its annotation."""

    @stage("read")
    def read_one(image: SamplePaths) -> Encoded:
        jpeg, annotation = load(image)
        size = tf.zeros(2, tf.int32)
        return Encoded(image.visit, jpeg, size, annotation, image.annotation_path, image.label)

    return waiting(dataset, read_one, calls_at_once(split.config, split.world).read)


def read_by_python(
    dataset: tf.data.Dataset,
    split: Split,
    load: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    per_call: int,
    at_once: int | None = None,
) -> tf.data.Dataset:
    """Reads images by `load`, as records.LoadImages, `SamplePaths` -> `Encoded`: `per_call` images by each call.

    With `data.on_error` "skip", an image that cannot be read is empty, which no decoder takes. `at_once` calls run at
    once if reads run in parallel; None for as many as `data.parallel.read` says. An image of 115 kB takes 18
    microseconds, 7 of them with the GIL; a small mask takes 3.
    """
    skips = split.config.on_error == "skip"

    def ask(items: np.ndarray) -> tuple[np.ndarray | str, ...]:
        try:
            return *retried(load)(items), ""
        except (OSError, ValueError) as error:
            if skips and len(items) > 1:
                *columns, _ = zip(*map(ask, np.split(items, len(items))), strict=True)
                return *map(np.concatenate, columns), ""
            nothing = np.full(len(items), b"", object)
            return nothing, nothing, nothing, "" if skips else str(error)

    @stage("read")
    def read_some(images: SamplePaths) -> Encoded:
        *tensors, problem = tf.numpy_function(ask, [images.item], [tf.string] * 4, stateful=False)
        # An exception raised in Python would be logged with a traceback, also when the process ends.
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
            jpeg, annotation, path = (tf.ensure_shape(tensor, images.item.shape) for tensor in tensors)
        size = tf.zeros([tf.size(images.item), 2], tf.int32)
        return Encoded(images.visit, jpeg, size, annotation, path, images.label)

    calls = calls_at_once(split.config, split.world).read
    return waiting(dataset.batch(per_call), read_some, (calls and at_once) or calls).unbatch()


def waiting(dataset: tf.data.Dataset, read: Callable[..., Encoded], calls: int | None) -> tf.data.Dataset:
    """Maps `read` over the elements with `calls` in parallel; None for one at a time, in the caller's own thread.

    Uses threads outside the pipeline's pool: in the pool, waiting reads would block threads that decoders need.
    """
    return dataset.map(mark_reads(read), num_parallel_calls=calls, name="read", **unbounded_threads(calls is not None))


def entry_finder(table: StoredTable, catalog: Catalog) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns an in-graph function: samples (int64 [n]) -> their images' entry points, string [n], "" for none.

    It looks them up in the table of a split's `entries` where they are in memory.
    """
    lines = Lines(*columns(table.columns["text"], table.columns["starts"], sent=False))
    image_of = image_finder(catalog, sent=False)
    return lambda items: lines.at(image_of(items))
