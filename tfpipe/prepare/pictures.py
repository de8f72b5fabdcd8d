"""Iterates over the files or crops of a split, read and cut by the pipeline, for packing."""

from collections.abc import Iterator
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


class Pictures:
    """The files or crops of a split by their place in the packing order, which is the split's order."""

    def __init__(self, split: Split, jpeg: dict[str, Any] | None) -> None:
        """Prepares to read `split`, whose boxes are known if its config needs them.

        The config has no random crops or flips; `jpeg` holds the quality and subsampling of crops, or is None for
        pixels.
        """
        self._split, self._jpeg = split, jpeg
        self._lookup = Lookup(split.catalog)

    def files(self, places: np.ndarray) -> Iterator[Picture]:
        """Yields the files at `places`, int64 [n].

        Raises ConfigError if a file cannot be read; the message names it.
        """

        def plain(encoded: Encoded) -> tuple[tf.Tensor, ...]:
            return encoded.visit.position, encoded.label, encoded.jpeg

        images = read(self._located(places), self._split)
        return self._pictures(images.map(plain).batch(SOME), places)

    def crops(self, places: np.ndarray) -> Iterator[Picture]:
        """Yields the crops of the images at `places`, int64 [n].

        Raises ConfigError if an image cannot be used; the message names it.
        """

        def plain(crops: Crops) -> tuple[tf.Tensor, ...]:
            contents = crops.images
            if self._jpeg is not None:
                contents = tf.map_fn(self._encode, contents, fn_output_signature=tf.string)
            return crops.positions[:, 0], crops.labels, contents

        images = read(self._located(places), self._split)
        cut = crop(images, self._split)
        calls = calls_at_once(self._split.config, self._split.world).decode
        return self._pictures(cut.map(plain, num_parallel_calls=calls), places)

    def _items(self, places: np.ndarray) -> np.ndarray:
        return self._split.order.items(places)

    def _located(self, places: np.ndarray) -> tf.data.Dataset:
        visits = SampleRef(places, self._items(places), np.zeros_like(places))
        return tf.data.Dataset.from_tensor_slices(visits).batch(BLOCK).map(self._lookup.located).unbatch()

    def _encode(self, crop: tf.Tensor) -> tf.Tensor:
        assert self._jpeg is not None, "crops become JPEGs"
        halved = self._jpeg["subsampling"] == "420"
        return tf.io.encode_jpeg(crop, quality=self._jpeg["quality"], chroma_downsampling=halved)

    def _pictures(self, dataset: tf.data.Dataset, places: np.ndarray) -> Iterator[Picture]:
        reached, all_items = int(places[0]), self._items(places)
        try:
            batches = dataset.prefetch(AHEAD).with_options(options(self._split.config, self._split.world))
            for batch in Cancellable(batches):
                at, labels, contents = (tensor.numpy() for tensor in batch)
                items = all_items[np.searchsorted(places, at)]
                for item, label, picture in zip(items.tolist(), labels.tolist(), contents, strict=True):
                    yield Picture(item, label, picture)
                if len(at):
                    reached = int(at[-1])
        except tf.errors.OpError as error:
            left = places[np.searchsorted(places, reached) :]
            for place, cause in zip(left, replay(self._located(left), self._split), strict=False):
                if isinstance(cause, tf.errors.OpError):
                    failure = self._split.explain(int(self._items(place[None])[0]), cause)
                    raise ConfigError(f"cannot use {failure.path}: {failure.reason}; {self._split.remedy}") from cause
            raise ConfigError(f"cannot pack {self._split.catalog.split} data: {reason(error)}") from error
