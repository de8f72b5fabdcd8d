"""A catalog in graph: what the pipeline asks it for each item."""

import tensorflow as tf

from tfpipe.data.catalog import Catalog


class Lookup:
    """The catalog's paths and labels, as a few tensors that graphs hold by reference: some 35 bytes an image.

    A base name of up to 22 bytes takes TensorFlow 24, a longer one, or a whole path, an allocation of its own.
    """

    def __init__(self, catalog: Catalog) -> None:
        with tf.device("CPU"):  # where tf.data runs
            # Not one string for all: a tensor of up to 128 elements would be copied into every graph.
            self._names = tf.concat([tf.constant(names) for _, names in catalog.paths.chunks()], axis=0)
            self._folder = tf.constant(catalog.paths.folder)
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)
            self._annotated = tf.constant(catalog.annotated)
            self._labels = tf.constant(catalog.labels)
            self._images = tf.constant(catalog.boxes.images) if catalog.by_box else None

    def image(self, sample: tf.Tensor) -> tf.Tensor:
        """int64 scalar: the item that `sample`, an int64 scalar, is of: itself, or the image of a box."""
        return sample if self._images is None else tf.cast(tf.gather(self._images, sample), tf.int64)

    def label(self, item: tf.Tensor) -> tf.Tensor:
        """int32 scalar: the label of `item`, an int64 scalar."""
        return tf.gather(self._labels, item)

    def path(self, item: tf.Tensor) -> tf.Tensor:
        """string scalar: the path of `item`, an int64 scalar."""
        return tf.gather(self._folders, tf.gather(self._folder, item)) + tf.gather(self._names, item)

    def annotation(self, item: tf.Tensor) -> tf.Tensor:
        """string scalar: the path of the XML of `item`, an int64 scalar; "" where there is none."""

        def path() -> tf.Tensor:
            folder = tf.gather(self._annotation_folders, tf.gather(self._folder, item))
            # As annotations.xml_name has it.
            stem = tf.strings.regex_replace(tf.gather(self._names, item), r"(.)\.[^.]*$", r"\1")
            return tf.strings.join([folder, stem, ".xml"])

        return tf.cond(tf.gather(self._annotated, item), path, lambda: "")
