"""Looks up paths and labels of samples in the catalog, in graph."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.data.annotations.formats import FORMATS
from tfpipe.data.annotations.targets import KnownTargets, target_parser
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.crops import Targets
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.runtime.columns import Lines, columns


class SamplePaths(NamedTuple):
    """An image to be read: scalars, or tensors [k] for k images."""

    visit: SampleRef  # position in the stream, item, and number of the first crop wanted
    item: tf.Tensor  # int64: the image's number in the filelist
    path: tf.Tensor  # string
    annotation_path: tf.Tensor  # string: of its mask or XML; "" if there is none
    label: tf.Tensor  # int32: class number, or BY_OBJECT


class Paths:
    """Paths, looked up in graph where they are in memory."""

    def __init__(self, paths: FileList, *, sent: bool) -> None:
        """Looks up in `paths`; `sent`: the graph goes to other processes, which need the paths in it."""
        text, starts, self.folder = columns(paths.text, paths.offsets, paths.folder, sent=sent)
        self.names = Lines(text, starts)
        # On the CPU, where tf.data runs, and outside any graph being built, so that it holds references, not copies.
        with tf.init_scope(), tf.device("CPU"):
            self._folders = tf.constant(paths.folders)

    def at(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of `items`, int64 [...]."""
        return tf.gather(self._folders, self.folder.at(items)) + self.names.at(items)


def image_finder(catalog: Catalog, *, sent: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns an in-graph function: samples (int64 [...]), which are images or boxes -> the images' numbers."""
    boxes = catalog.sampled_boxes
    if boxes is None:
        return lambda samples: samples
    (images,) = columns(boxes.images, sent=sent)
    return lambda samples: tf.cast(images.at(samples), tf.int64)


class Lookup:
    """The catalog's paths and labels, looked up in graph where they are in memory."""

    def __init__(self, catalog: Catalog, *, sent: bool = False) -> None:
        """Looks up in `catalog`; `sent`: the graph goes to other processes, which need the paths and labels in it."""
        self._annotated, self._labels = columns(catalog.annotated, catalog.labels, sent=sent)
        self._image_of = image_finder(catalog, sent=sent)
        self._suffix = FORMATS[catalog.annotation_format].suffix
        self._paths = Paths(catalog.paths, sent=sent)
        self._masks = None if catalog.masks is None else Paths(catalog.masks, sent=sent)
        with tf.init_scope(), tf.device("CPU"):
            self._annotation_folders = tf.constant(catalog.annotation_folders)

    def sample_paths(self, visits: SampleRef) -> SamplePaths:
        """Returns the paths and labels of `visits`, whose fields are int64 [] or [k]."""
        items = self._image_of(visits.item)
        return SamplePaths(visits, items, self.path(items), self.annotation(items), self._labels.at(items))

    def path(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of `items`, int64 [...]."""
        return self._paths.at(items)

    def annotation(self, items: tf.Tensor) -> tf.Tensor:
        """Returns string [...]: the paths of the masks or XMLs of `items`, int64 [...]; "" if there is none."""
        if self._masks is not None:
            return self._masks.at(items)
        # The same rule as in layout.annotation_name.
        stems = tf.strings.regex_replace(self._paths.names.at(items), r"(.)\.[^.]*$", r"\1")
        folders = tf.gather(self._annotation_folders, self._paths.folder.at(items))
        return tf.where(self._annotated.at(items), tf.strings.join([folders, stems, self._suffix]), "")


def find_targets(
    catalog: Catalog, classes: Sequence[str], *, sent: bool = False
) -> Callable[[Any, tf.Tensor], Targets]:
    """Returns an in-graph function: (images as read, `Encoded` [n]; their sizes, int32 [n, 2]) -> the boxes to crop.

    It looks up known boxes, or parses the annotations for objects of `classes`; `sent` as in Lookup.
    """
    if catalog.boxes is None:
        parse = target_parser(classes, catalog.annotation_format)
        return lambda images, sizes: parse(images.annotation, images.annotation_path, images.label, sizes, images.jpeg)
    stated = catalog.stated if catalog.stated is None or not catalog.by_box else catalog.stated[catalog.boxes.images]
    offsets = None if catalog.by_box else catalog.boxes.offsets(len(catalog))
    boxes = KnownTargets(catalog.boxes, offsets, stated, sent=sent)
    return lambda images, sizes: boxes.at_checked(images.visit.item, sizes, images.jpeg)
