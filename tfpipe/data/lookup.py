"""A catalog in graph: what the pipeline asks it for each item."""

from typing import NamedTuple

import tensorflow as tf

from tfpipe.data.catalog import Catalog
from tfpipe.data.stream import Visit


class Located(NamedTuple):
    """An image to be read, or tensors of many."""

    visit: Visit  # where in the stream, which item, and which of its crops are wanted
    item: tf.Tensor  # int64: the image's number in the filelist
    path: tf.Tensor  # string
    xml_path: tf.Tensor  # string, "" where there is none
    label: tf.Tensor  # int32: class number, or BY_OBJECT


class Lookup:
    """The catalog's paths and labels, as a few tensors that graphs hold by reference: some 35 bytes an image.

    A base name of up to 22 bytes takes TensorFlow 24, a longer one, or a whole path, an allocation of its own.
    """

    def __init__(self, catalog: Catalog) -> None:
        # On the CPU, where tf.data runs, and beside the graph, if one is being made: it is to hold them by reference.
        with tf.init_scope(), tf.device("CPU"):
            # Not one string for all: a tensor of up to 128 elements would be copied into every graph.
            self._names = tf.concat([tf.constant(names) for _, names in catalog.paths.chunks()], axis=0)
            self._folder = tf.constant(catalog.paths.folder)
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)
            self._annotated = tf.constant(catalog.annotated)
            self._labels = tf.constant(catalog.labels)
            boxes = catalog.sampled_boxes
            self._images = None if boxes is None else tf.constant(boxes.images)

    def located(self, visits: Visit) -> Located:
        """What `visits`, each an int64 scalar or [k], are of."""
        items = visits.item if self._images is None else tf.cast(tf.gather(self._images, visits.item), tf.int64)
        return Located(visits, items, self.path(items), self.annotation(items), tf.gather(self._labels, items))

    def label(self, items: tf.Tensor) -> tf.Tensor:
        """int32 [...]: the labels of `items`, int64 [...]."""
        return tf.gather(self._labels, items)

    def path(self, items: tf.Tensor) -> tf.Tensor:
        """string [...]: the paths of `items`, int64 [...]."""
        return tf.gather(self._folders, tf.gather(self._folder, items)) + tf.gather(self._names, items)

    def annotation(self, items: tf.Tensor) -> tf.Tensor:
        """string [...]: the paths of the XMLs of `items`, int64 [...]; "" where there is none."""
        folders = tf.gather(self._annotation_folders, tf.gather(self._folder, items))
        # As annotations.xml_name has it.
        stems = tf.strings.regex_replace(tf.gather(self._names, items), r"(.)\.[^.]*$", r"\1")
        return tf.where(tf.gather(self._annotated, items), tf.strings.join([folders, stems, ".xml"]), "")
