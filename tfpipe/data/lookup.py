"""A catalog in graph: what the pipeline asks it for each item."""

import tensorflow as tf

from tfpipe.data.catalog import Catalog


class Lookup:
    """The catalog's paths and labels, as a few tensors that graphs hold by reference: some 35 bytes an image.

    The base names are one string, of which a path takes a piece: as a string each they would take 60 bytes more.
    """

    def __init__(self, catalog: Catalog) -> None:
        with tf.device("CPU"):  # where tf.data runs
            self._names = tf.constant(catalog.paths.names)
            self._offsets = tf.constant(catalog.paths.offsets)
            self._folder = tf.constant(catalog.paths.folder)
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)
            self._annotated = tf.constant(catalog.annotated)
            self._labels = tf.constant(catalog.labels)
            self._images = None if catalog.boxes is None else tf.constant(catalog.boxes.images)

    def image(self, sample: tf.Tensor) -> tf.Tensor:
        """int64 scalar: the item that `sample`, an int64 scalar, is of: itself, or the image of a box."""
        return sample if self._images is None else tf.cast(tf.gather(self._images, sample), tf.int64)

    def label(self, item: tf.Tensor) -> tf.Tensor:
        """int32 scalar: the label of `item`, an int64 scalar."""
        return tf.gather(self._labels, item)

    def path(self, item: tf.Tensor) -> tf.Tensor:
        """string scalar: the path of `item`, an int64 scalar."""
        return tf.gather(self._folders, tf.gather(self._folder, item)) + self._name(item)

    def annotation(self, item: tf.Tensor) -> tf.Tensor:
        """string scalar: the path of the XML of `item`, an int64 scalar; "" where there is none."""

        def path() -> tf.Tensor:
            folder = tf.gather(self._annotation_folders, tf.gather(self._folder, item))
            stem = tf.strings.regex_replace(self._name(item), r"(.)\.[^.]*$", r"\1")  # as annotations.xml_name
            return tf.strings.join([folder, stem, ".xml"])

        return tf.cond(tf.gather(self._annotated, item), path, lambda: "")

    def _name(self, item: tf.Tensor) -> tf.Tensor:
        start = tf.gather(self._offsets, item)
        return tf.strings.substr(self._names, start, tf.gather(self._offsets, item + 1) - start - 1)
