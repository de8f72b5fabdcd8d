"""Iterates over the files or crops of a split, read and cut by the pipeline, for packing."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.failures.diagnose import replay
from tfpipe.data.images.crops import Crops
from tfpipe.data.order.stream import BLOCK, SampleRef
from tfpipe.data.pipeline import Encoded, crop, read
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.runtime.parallelism import calls_at_once, options
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

SOME = 32
AHEAD = 8


class Picture(NamedTuple):
    """A file or a crop."""

    item: int  # number of its image in the catalog
    label: int
    contents: Any  # bytes of a file or of a crop's JPEG, or a crop's pixels: uint8 [height, width, channels]


class Pictures:
    """The files or crops of a split by their place in the packing order, which is catalog.order."""

    def __init__(self, catalog: Catalog, config: DataConfig, world: World, jpeg: dict[str, Any] | None) -> None:
        """Prepares to read `catalog`, whose boxes are known if `config` needs them.

        `config` has no random crops or flips; `world` sets the number of threads; `jpeg` holds the quality and
        subsampling of crops, or is None for pixels.
        """
        self._catalog, self._config, self._world, self._jpeg = catalog, config, world, jpeg
        self._lookup = Lookup(catalog)

    def files(self, places: np.ndarray) -> Iterator[Picture]:
        """Yields the files at `places`, int64 [n].

        Raises ConfigError if a file cannot be read; the message names it.
        """

        def plain(encoded: Encoded) -> tuple[tf.Tensor, ...]:
            return encoded.visit.position, encoded.label, encoded.jpeg

        images = read(self._located(places), self._catalog, self._config, self._world)
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

        images = read(self._located(places), self._catalog, self._config, self._world)
        cut = crop(images, self._catalog, self._config, self._world)
        calls = calls_at_once(self._config, self._world).decode
        return self._pictures(cut.map(plain, num_parallel_calls=calls), places)

    def _items(self, places: np.ndarray) -> np.ndarray:
        return self._catalog.order(self._config).items(places)

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
            batches = dataset.prefetch(AHEAD).with_options(options(self._config, self._world))
            for batch in Cancellable(batches):
                at, labels, contents = (tensor.numpy() for tensor in batch)
                items = all_items[np.searchsorted(places, at)]
                for item, label, picture in zip(items.tolist(), labels.tolist(), contents, strict=True):
                    yield Picture(item, label, picture)
                if len(at):
                    reached = int(at[-1])
        except tf.errors.OpError as error:
            left = places[np.searchsorted(places, reached) :]
            for place, cause in zip(left, replay(self._located(left), self._catalog, self._config), strict=False):
                if isinstance(cause, tf.errors.OpError):
                    source, item = self._catalog.source, int(self._items(place[None])[0])
                    failure = source.explain(self._catalog, self._config, item, cause)
                    raise ConfigError(f"cannot use {failure.path}: {failure.reason}; {source.remedy}") from cause
            raise ConfigError(f"cannot pack {self._catalog.split} data: {reason(error)}") from error
