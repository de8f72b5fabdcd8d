"""Iterates over the files or crops of a split, read and cut by the pipeline, for packing."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.failures.diagnose import replay
from tfpipe.data.images.crops import Crops
from tfpipe.data.order.stream import BLOCK, SampleRef
from tfpipe.data.pipeline import Encoded, crop, read
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.runtime.parallelism import calls_at_once, options
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

SOME = 32
AHEAD = 8


class Picture(NamedTuple):
    """A file or a crop."""

    item: int  # number of its image in the catalog
    label: int
    contents: Any  # bytes of a file or of a crop's JPEG, or a crop's pixels: uint8 [height, width, channels]


def pictures(split: Split, places: np.ndarray, jpeg: dict[str, Any] | None, *, crops: bool) -> Iterator[Picture]:
    """Yields the files or `crops` at `places` of the packing order, int64 [n], which is the split's order.

    The boxes of `split` are known if its config needs them, and the config has no random crops or flips. `jpeg` holds
    the quality and subsampling of crops; None for pixels. Raises ConfigError if an image cannot be used; the message
    names it.
    """
    lookup, all_items = Lookup(split.catalog), split.order.items(places)

    def located(places: np.ndarray) -> tf.data.Dataset:
        visits = SampleRef(places, split.order.items(places), np.zeros_like(places))
        return tf.data.Dataset.from_tensor_slices(visits).batch(BLOCK).map(lookup.located).unbatch()

    def plain_file(encoded: Encoded) -> tuple[tf.Tensor, ...]:
        return encoded.visit.position, encoded.label, encoded.jpeg

    def plain_crops(crops: Crops) -> tuple[tf.Tensor, ...]:
        contents = crops.images
        if jpeg is not None:
            encode = partial(
                tf.io.encode_jpeg, quality=jpeg["quality"], chroma_downsampling=jpeg["subsampling"] == "420"
            )
            contents = tf.map_fn(encode, contents, fn_output_signature=tf.string)
        return crops.positions[:, 0], crops.labels, contents

    images = read(located(places), split)
    if crops:
        dataset = crop(images, split).map(
            plain_crops, num_parallel_calls=calls_at_once(split.config, split.world).decode
        )
    else:
        dataset = images.map(plain_file).batch(SOME)
    reached = int(places[0])
    try:
        for batch in Cancellable(dataset.prefetch(AHEAD).with_options(options(split.config, split.world))):
            at, labels, contents = (tensor.numpy() for tensor in batch)
            items = all_items[np.searchsorted(places, at)]
            for item, label, picture in zip(items.tolist(), labels.tolist(), contents, strict=True):
                yield Picture(item, label, picture)
            if len(at):
                reached = int(at[-1])
    except tf.errors.OpError as error:
        left = np.searchsorted(places, reached)
        for item, cause in zip(all_items[left:].tolist(), replay(located(places[left:]), split), strict=False):
            if isinstance(cause, tf.errors.OpError):
                failure = split.explain(item, cause)
                raise ConfigError(f"cannot use {failure.path}: {failure.reason}; {split.remedy}") from cause
        raise ConfigError(f"cannot pack {split.catalog.split} data: {reason(error)}") from error
