"""Looks up paths and labels of samples in the catalog, in graph."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.annotations.targets import KnownTargets
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import SampleRef
from tfpipe.distributed import World


class SamplePaths(NamedTuple):
    """An image to be read: scalars, or tensors [k] for k images."""

    visit: SampleRef  # position in the stream, item, and number of the first crop wanted
    item: tf.Tensor  # int64: the image's number in the filelist
    path: tf.Tensor  # string
    xml_path: tf.Tensor  # string, "" if there is no XML
    label: tf.Tensor  # int32: class number, or BY_OBJECT


class Lookup:
    """The catalog's paths and labels as a few tensors, some 35 bytes per image, that graphs hold by reference.

    TensorFlow stores a string of up to 22 bytes in 24; base names fit, whole paths would need an allocation each.
    """

    def __init__(self, catalog: Catalog) -> None:
        # On the CPU, where tf.data runs, and outside any graph being built, so that it holds references, not copies.
        with tf.init_scope(), tf.device("CPU"):
            # Not a single string for all names: a tensor of up to 128 elements would be copied into every graph.
            self._names = tf.concat([tf.constant(names) for _, names in catalog.paths.chunks()], axis=0)
            self._folder = tf.constant(catalog.paths.folder)
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)
            self._annotated = tf.constant(catalog.annotated)
            self._labels = tf.constant(catalog.labels)
            boxes = catalog.sampled_boxes
            self._images = None if boxes is None else tf.constant(boxes.images)

    def located(self, visits: SampleRef) -> SamplePaths:
        """Returns the paths and labels of `visits`, whose fields are int64 [] or [k]."""
        items = visits.item if self._images is None else tf.cast(tf.gather(self._images, visits.item), tf.int64)
        return SamplePaths(visits, items, self.path(items), self.annotation(items), tf.gather(self._labels, items))

    def label(self, items: tf.Tensor) -> tf.Tensor:
        """Returns int32 [...]: the labels of `items`, int64 [...]."""
        return tf.gather(self._labels, items)

    def path(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of `items`, int64 [...]."""
        return tf.gather(self._folders, tf.gather(self._folder, items)) + tf.gather(self._names, items)

    def annotation(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of the XMLs of `items`, int64 [...]; "" if there is none."""
        folders = tf.gather(self._annotation_folders, tf.gather(self._folder, items))
        # The same rule as in layout.xml_name.
        stems = tf.strings.regex_replace(tf.gather(self._names, items), r"(.)\.[^.]*$", r"\1")
        return tf.where(tf.gather(self._annotated, items), tf.strings.join([folders, stems, ".xml"]), "")


def sample_names(catalog: Catalog, config: DataConfig, world: World, positions: Sequence[int]) -> list[str]:
    """Returns the names of the images at a rank's stream positions, as messages have them: mostly their paths."""
    items = catalog.order(config).items(np.array(positions, np.int64), world)
    return [catalog.source.name(catalog, catalog.image_and_box(item)[0]) for item in items.tolist()]


def known_targets(catalog: Catalog) -> KnownTargets | None:
    """Returns the catalog's boxes as tensors, None if the pipeline reads the XMLs."""
    if catalog.boxes is None:
        return None
    return KnownTargets(catalog.boxes, None if catalog.by_box else catalog.boxes.offsets(len(catalog)))
