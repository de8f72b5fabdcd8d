"""A catalog in graph: what the pipeline asks it for each item."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog import Catalog
from tfpipe.data.filelist import LINE_END
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

    They are of numbers, the base names too, which another process can be sent as they lie in memory: as strings, names
    would take it five times as much.
    """

    def __init__(self, catalog: Catalog) -> None:
        # On the CPU, where tf.data runs, and beside the graph, if one is being made: it is to hold them by reference.
        with tf.init_scope(), tf.device("CPU"):
            letters = _letters(catalog.paths.names)
            ends = np.flatnonzero(letters == LINE_END)
            self._letters, self._ends = tf.constant(letters), tf.constant(ends.astype(np.int32))
            self._folder = tf.constant(catalog.paths.folder)
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)
            self._annotated = tf.constant(catalog.annotated)
            self._labels = tf.constant(catalog.labels)
            self._images = tf.constant(catalog.boxes.images) if catalog.by_box else None

    def located(self, visits: Visit) -> Located:
        """What `visits`, each an int64 scalar or [k], are of."""
        items = visits.item if self._images is None else tf.cast(tf.gather(self._images, visits.item), tf.int64)
        return Located(visits, items, self.path(items), self.annotation(items), tf.gather(self._labels, items))

    def label(self, items: tf.Tensor) -> tf.Tensor:
        """int32 [...]: the labels of `items`, int64 [...]."""
        return tf.gather(self._labels, items)

    def path(self, items: tf.Tensor) -> tf.Tensor:
        """string [...]: the paths of `items`, int64 [...]."""
        return tf.gather(self._folders, tf.gather(self._folder, items)) + self._name(items)

    def annotation(self, items: tf.Tensor) -> tf.Tensor:
        """string [...]: the paths of the XMLs of `items`, int64 [...]; "" where there is none."""
        folders = tf.gather(self._annotation_folders, tf.gather(self._folder, items))
        # As annotations.xml_name has it.
        stems = tf.strings.regex_replace(self._name(items), r"(.)\.[^.]*$", r"\1")
        return tf.where(tf.gather(self._annotated, items), tf.strings.join([folders, stems, ".xml"]), "")

    def _name(self, items: tf.Tensor) -> tf.Tensor:
        """string [...]: the base names of `items`, int64 [...]."""
        numbers = tf.reshape(items, [-1])
        begins = tf.where(numbers > 0, tf.gather(self._ends, tf.maximum(numbers - 1, 0)) + 1, 0)
        places = tf.ragged.range(begins, tf.gather(self._ends, numbers))
        letters = places.with_values(tf.cast(tf.gather(self._letters, places.values), tf.int32))
        return tf.reshape(tf.strings.unicode_encode(letters, "UTF-8"), tf.shape(items))


def _letters(names: bytes) -> np.ndarray:
    """uint8 or int32 [k]: the code points of text in UTF-8."""
    return (
        np.frombuffer(names, np.uint8) if names.isascii() else np.frombuffer(names.decode().encode("utf-32-le"), "<i4")
    )
