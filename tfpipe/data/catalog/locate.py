"""Looks up paths and labels of samples in the catalog, in graph."""

from typing import NamedTuple

import tensorflow as tf

from tfpipe.data.annotations.targets import KnownTargets
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.columns import Lines, columns


class SamplePaths(NamedTuple):
    """An image to be read: scalars, or tensors [k] for k images."""

    visit: SampleRef  # position in the stream, item, and number of the first crop wanted
    item: tf.Tensor  # int64: the image's number in the filelist
    path: tf.Tensor  # string
    xml_path: tf.Tensor  # string, "" if there is no XML
    label: tf.Tensor  # int32: class number, or BY_OBJECT


class Lookup:
    """The catalog's paths and labels, looked up in graph where they are in memory."""

    def __init__(self, catalog: Catalog, *, sent: bool = False) -> None:
        """Looks up in `catalog`; `sent`: the graph goes to other processes, which need the paths and labels in it."""
        paths, boxes = catalog.paths, catalog.sampled_boxes
        arrays = [paths.text, paths.offsets, paths.folder, catalog.annotated, catalog.labels]
        text, starts, self._folder, self._annotated, self._labels, *images = columns(
            *arrays, *([] if boxes is None else [boxes.images]), sent=sent
        )
        self._names, self._images = Lines(text, starts), images[0] if images else None
        # On the CPU, where tf.data runs, and outside any graph being built, so that it holds references, not copies.
        with tf.init_scope(), tf.device("CPU"):
            self._folders = tf.constant(catalog.paths.folders)
            self._annotation_folders = tf.constant(catalog.annotation_folders)

    def sample_paths(self, visits: SampleRef) -> SamplePaths:
        """Returns the paths and labels of `visits`, whose fields are int64 [] or [k]."""
        items = visits.item if self._images is None else tf.cast(self._images.at(visits.item), tf.int64)
        names, folder = self._names.at(items), self._folder.at(items)
        path = tf.gather(self._folders, folder) + names
        return SamplePaths(visits, items, path, self._annotation(items, names, folder), self.label(items))

    def label(self, items: tf.Tensor) -> tf.Tensor:
        """Returns int32 [...]: the labels of `items`, int64 [...]."""
        return self._labels.at(items)

    def path(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of `items`, int64 [...]."""
        return tf.gather(self._folders, self._folder.at(items)) + self._names.at(items)

    def annotation(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of the XMLs of `items`, int64 [...]; "" if there is none."""
        return self._annotation(items, self._names.at(items), self._folder.at(items))

    def _annotation(self, items: tf.Tensor, names: tf.Tensor, folder: tf.Tensor) -> tf.Tensor:
        # The same rule as in layout.xml_name.
        stems = tf.strings.regex_replace(names, r"(.)\.[^.]*$", r"\1")
        paths = tf.strings.join([tf.gather(self._annotation_folders, folder), stems, ".xml"])
        return tf.where(self._annotated.at(items), paths, "")


def known_targets(catalog: Catalog, *, sent: bool = False) -> KnownTargets | None:
    """Returns the catalog's boxes, looked up in graph as by Lookup, None if the pipeline reads the XMLs."""
    if catalog.boxes is None:
        return None
    return KnownTargets(catalog.boxes, None if catalog.by_box else catalog.boxes.offsets(len(catalog)), sent=sent)
