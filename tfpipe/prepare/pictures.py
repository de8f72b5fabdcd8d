"""The files or crops of a split, read and cut by the pipeline, and the shards that they are packed into.

A shard has TFRecords of image files or crops, or is a NumPy array of pixels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.cleaning import BY_OBJECT, WHOLE_IMAGE
from tfpipe.data.catalog.labels import read_words
from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.failures.diagnose import replay
from tfpipe.data.images.crops import Crops
from tfpipe.data.images.headers import STORED, check_turned, header_of
from tfpipe.data.order.stream import BLOCK, SampleRef
from tfpipe.data.pipeline import crop, read
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import as_os_error, reason
from tfpipe.data.runtime.parallelism import calls_at_once, options
from tfpipe.data.sources.packed.examples import HEAD, TAIL, Example, serialize
from tfpipe.data.sources.packed.shards import WHOLE, Kind
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError
from tfpipe.native import core

FILES_PER_BATCH = 32
BATCHES_AHEAD = 8


class Picture(NamedTuple):
    """A file or a crop."""

    item: int  # number of its image in the catalog
    label: int
    contents: Any
    """Bytes of a file, of its coefficients or of a crop's JPEG; or a crop's pixels, uint8 [height, width, channels]."""


def pictures(split: Split, places: np.ndarray, jpeg: dict[str, Any] | None, kind: Kind) -> Iterator[Picture]:
    """Yields the files, coefficients or crops at `places` of the packing order, int64 [n], which is the split's order.

    The boxes of `split` are known if its config needs them, and the config has no random crops or flips. `jpeg` holds
    the quality and subsampling of crops; None for pixels. Raises ConfigError if an image cannot be used; the message
    names it.
    """
    lookup, all_items = Lookup(split.catalog), split.order.items(places)

    def paths_at(places: np.ndarray) -> tf.data.Dataset:
        visits = SampleRef(places, split.order.items(places), np.zeros_like(places))
        return tf.data.Dataset.from_tensor_slices(visits).batch(BLOCK).map(lookup.sample_paths).unbatch()

    def plain_crops(crops: Crops) -> tuple[tf.Tensor, ...]:
        contents = crops.images
        if jpeg is not None:
            encode = partial(
                tf.io.encode_jpeg, quality=jpeg["quality"], chroma_downsampling=jpeg["subsampling"] == "420"
            )
            contents = tf.map_fn(encode, contents, fn_output_signature=tf.string)
        return crops.positions[:, 0], crops.labels, contents

    images, decoding = read(paths_at(places), split), calls_at_once(split.config, split.world).decode
    if kind not in WHOLE:
        dataset = crop(images, split).map(plain_crops, num_parallel_calls=decoding)
    else:
        dataset = images.map(lambda file: (file.visit.position, file.label, file.jpeg)).batch(FILES_PER_BATCH)
        if kind == "coefficients":
            dataset = dataset.map(_store_coefficients, num_parallel_calls=decoding)
    reached = int(places[0])
    try:
        for batch in Cancellable(dataset.prefetch(BATCHES_AHEAD).with_options(options(split.config, split.world))):
            at, labels, contents = (tensor.numpy() for tensor in batch)
            items = all_items[np.searchsorted(places, at)]
            for item, label, picture in zip(items.tolist(), labels.tolist(), contents, strict=True):
                yield Picture(item, label, picture)
            if len(at):
                reached = int(at[-1])
    except tf.errors.OpError as error:
        first = np.searchsorted(places, reached)
        for item, cause in zip(all_items[first:].tolist(), replay(paths_at(places[first:]), split), strict=False):
            if isinstance(cause, tf.errors.OpError):
                failure = split.explain(item, cause)
                raise ConfigError(f"cannot use {failure.path}: {failure.reason}; {split.remedy}") from cause
        raise ConfigError(f"cannot pack {split.catalog.split} data: {reason(error)}") from error


def _store_coefficients(at: tf.Tensor, labels: tf.Tensor, files: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Replaces JPEGs by their coefficients; files that the decoder in C refuses stay as they are."""

    def store(batch: np.ndarray) -> np.ndarray:
        return np.array([core().store(file) or file for file in batch.tolist()], object)

    return at, labels, tf.ensure_shape(tf.numpy_function(store, [files], tf.string, stateful=False), files.shape)


Add = Callable[[Picture], tuple[int, int]]
"""Appends a picture to a shard; returns the offset and the length of its bytes there.

Raises ValueError if it is not an image, OSError if it cannot be written.
"""


@contextmanager
def pixels(path: Path, shape: tuple[int, int, int, int]) -> Iterator[Add]:
    """Opens a shard for crops as a uint8 array of that shape, in NumPy's format."""
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield lambda picture: (file.tell(), file.write(picture.contents))


@contextmanager
def tfrecords(path: Path, example: Callable[[Picture], Example]) -> Iterator[Add]:
    """Opens a shard for TFRecords of tf.train.Examples; raises OSError if it cannot be written."""
    end = 0
    with as_os_error(), tf.io.TFRecordWriter(str(path)) as writer:

        def add(picture: Picture) -> tuple[int, int]:
            nonlocal end
            data = serialize(example(picture))
            start = end + HEAD + data.index(picture.contents)
            writer.write(data)
            end += HEAD + len(data) + TAIL
            return start, len(picture.contents)

        yield add


def examples(split: Split, *, crops: bool) -> Callable[[Picture], Example]:
    """Returns a function that makes the record of a picture of `split`: of a crop, or of a file with its boxes."""
    catalog, classes = split.catalog, split.config.classes
    words = read_words(classes) if isinstance(classes, Path) else {}
    targets = None if crops else catalog.boxes
    offsets = np.zeros(0, np.int64) if targets is None else targets.offsets(len(catalog))

    def example(picture: Picture) -> Example:
        item, label = picture.item, picture.label
        synset = "" if label == BY_OBJECT else catalog.classes[label]
        boxes, labels = WHOLE_IMAGE, np.array([label])
        if targets is not None:
            # Without an annotation the catalog has the whole image as the target; the record has no box then.
            image_boxes = slice(offsets[item], offsets[item + 1] if catalog.annotated[item] else offsets[item])
            boxes, labels = targets.boxes[image_boxes], targets.labels[image_boxes]
        header = header_of(picture.contents, catalog.paths[item])
        if targets is not None and catalog.stated is not None:
            real = header.turned(split.config.turn)[:2]
            check_turned(catalog.stated[item], real, catalog.paths[item], header.orientation > 4)
        if picture.contents.startswith(STORED):
            header = header._replace(format="COEFFICIENTS")  # other readers must not take it for a JPEG
        text = words.get(synset, synset)
        return Example(picture.contents, header, catalog.paths.name(item), label, synset, text, boxes, labels)

    return example
