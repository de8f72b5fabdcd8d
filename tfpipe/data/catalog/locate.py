"""Looks up paths and labels of samples in the catalog, in graph."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.annotations.targets import KnownTargets
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.adopt import adopt
from tfpipe.distributed import World


class SamplePaths(NamedTuple):
    """An image to be read: scalars, or tensors [k] for k images."""

    visit: SampleRef  # position in the stream, item, and number of the first crop wanted
    item: tf.Tensor  # int64: the image's number in the filelist
    path: tf.Tensor  # string
    xml_path: tf.Tensor  # string, "" if there is no XML
    label: tf.Tensor  # int32: class number, or BY_OBJECT


class Lookup:
    """The catalog's paths and labels as a few tensors that graphs hold by reference, and a mapped file's in place."""

    def __init__(self, catalog: Catalog) -> None:
        names = catalog.paths.names
        self._names = held_names(catalog.paths) if isinstance(names, bytes) else names_in(names, catalog.paths.offsets)
        boxes = catalog.sampled_boxes
        arrays = [catalog.paths.folder, catalog.annotated, catalog.labels, *([] if boxes is None else [boxes.images])]
        self._folder, self._annotated, self._labels, *images = adopt(*arrays)
        self._images = images[0] if images else None
        # On the CPU, where tf.data runs, and outside any graph being built, so that it holds references, not copies.
        with tf.init_scope(), tf.device("CPU"):
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)

    def located(self, visits: SampleRef) -> SamplePaths:
        """Returns the paths and labels of `visits`, whose fields are int64 [] or [k]."""
        items = visits.item if self._images is None else tf.cast(tf.gather(self._images, visits.item), tf.int64)
        names, folder = self._names(items), tf.gather(self._folder, items)
        path = tf.gather(self._folders, folder) + names
        return SamplePaths(visits, items, path, self._annotation(items, names, folder), self.label(items))

    def label(self, items: tf.Tensor) -> tf.Tensor:
        """Returns int32 [...]: the labels of `items`, int64 [...]."""
        return tf.gather(self._labels, items)

    def path(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of `items`, int64 [...]."""
        return tf.gather(self._folders, tf.gather(self._folder, items)) + self._names(items)

    def annotation(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of the XMLs of `items`, int64 [...]; "" if there is none."""
        return self._annotation(items, self._names(items), tf.gather(self._folder, items))

    def _annotation(self, items: tf.Tensor, names: tf.Tensor, folder: tf.Tensor) -> tf.Tensor:
        # The same rule as in layout.xml_name.
        stems = tf.strings.regex_replace(names, r"(.)\.[^.]*$", r"\1")
        paths = tf.strings.join([tf.gather(self._annotation_folders, folder), stems, ".xml"])
        return tf.where(tf.gather(self._annotated, items), paths, "")


def held_names(paths: FileList) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from items, int64 [...], to base names, string [...], which are held as strings.

    TensorFlow stores a string of up to 22 bytes in 24; base names fit, whole paths would need an allocation each.
    """
    with tf.init_scope(), tf.device("CPU"):
        # Not a single string for all names: a tensor of up to 128 elements would be copied into every graph.
        names = tf.concat([tf.constant(names) for _, names in paths.chunks()], axis=0)
    return lambda items: tf.gather(names, items)


def names_in(names: np.ndarray, offsets: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the same function for names that are bytes, uint8 [m], each followed by a line end.

    It takes 2 microseconds of CPU time a name, and holds no memory; strings take 0.4, and 24 bytes each.
    """
    text, starts = adopt(names, offsets)

    def find(items: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(items, [-1])
        ranges = tf.ragged.range(tf.gather(starts, flat), tf.gather(starts, flat + 1))
        chosen = tf.gather(text, ranges.flat_values)
        # TensorFlow has no op from bytes to a string, but a serialized tensor of uint8 ends with its bytes.
        serialized, size = tf.io.serialize_tensor(chosen), tf.size(chosen)
        lines = tf.strings.substr(serialized, tf.strings.length(serialized) - size, size)
        return tf.reshape(tf.strings.split(lines, "\n")[:-1], tf.shape(items))

    return find


def sample_names(catalog: Catalog, config: DataConfig, world: World, positions: Sequence[int]) -> list[str]:
    """Returns the names of the images at a rank's stream positions, as messages have them: mostly their paths."""
    items = catalog.order(config).items(np.array(positions, np.int64), world)
    return [catalog.source.name(catalog, catalog.image_and_box(item)[0]) for item in items.tolist()]


def known_targets(catalog: Catalog) -> KnownTargets | None:
    """Returns the catalog's boxes as tensors, None if the pipeline reads the XMLs."""
    if catalog.boxes is None:
        return None
    return KnownTargets(catalog.boxes, None if catalog.by_box else catalog.boxes.offsets(len(catalog)))
