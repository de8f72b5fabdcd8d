"""Targets: the boxes of the annotated objects that may be cropped, looked up or parsed, in graph."""

import os
import threading
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.cleaning import Boxes, number_classes, sizes_of, targets
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import NOTHING, Objects
from tfpipe.data.images.crops import Targets
from tfpipe.data.images.headers import IS_TURNED, check_turned
from tfpipe.data.images.whole import swaps_sides
from tfpipe.data.runtime.columns import columns


class KnownTargets:
    """The boxes that are known from the start, looked up in graph, by image or, if boxes are samples, by box."""

    def __init__(
        self, boxes: Boxes, offsets: np.ndarray | None, stated: np.ndarray | None = None, *, sent: bool = False
    ) -> None:
        """Holds `boxes`; `offsets` (int [images + 1]) says where each image's start, None if every box is a sample.

        `stated` (float32 [samples, 2]) are the heights and widths by which pixels were divided, None if they are not
        known. `sent`: the graph goes to other processes, which need the boxes in it.
        """
        self._boxes, self._labels = columns(boxes.boxes, boxes.labels, sent=sent)
        self._offsets = None if offsets is None else columns(offsets, sent=sent)[0]
        self._stated = None if stated is None else columns(stated, sent=sent)[0]

    def at(self, samples: tf.Tensor) -> Targets:
        """Returns the targets of `samples` (int64 [n]), which are boxes or images."""
        if self._offsets is None:
            images, boxes = tf.range(tf.size(samples, tf.int64)), samples
        else:
            ranges = tf.ragged.range(self._offsets.at(samples), self._offsets.at(samples + 1))
            images, boxes = ranges.value_rowids(), ranges.values
        return Targets(images, self._boxes.at(boxes), self._labels.at(boxes))

    def at_checked(self, samples: tf.Tensor, sizes: tf.Tensor, jpegs: tf.Tensor) -> Targets:
        """Returns the targets of `samples`; `sizes` (int32 [n, 2]) are those of their images, and `jpegs` (string [n])
        the files.

        Raises tf.errors.InvalidArgumentError if the size that is stated with boxes is as of check_turned.
        """
        targets = self.at(samples)
        if self._stated is None:
            return targets
        real = tf.cast(sizes, tf.float32)
        swapped = tf.reduce_all(tf.equal(self._stated.at(samples), real[:, ::-1]), 1) & (real[:, 0] != real[:, 1])
        turned = swaps_sides(jpegs) & swapped
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(turned), [f"the {IS_TURNED}"])]):
            return Targets(*map(tf.identity, targets))


Parse = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Targets]
"""In graph: annotations of n images (string [n]), their paths (string [n], "" for no annotation), labels (int32 [n], or
BY_OBJECT), sizes (int32 [n, 2]) and files (string [n]) -> the boxes to crop."""


def target_parser(classes: Sequence[str], form: str = "voc") -> Parse:
    """Returns an in-graph function that parses annotations of a format, by Python, as cleaning.targets uses them.

    `classes` are in the numbers' order. An XML takes 60 microseconds of CPU time, one call at a time
    (profiles/annotations.py); an index saves it. The function raises tf.errors.InvalidArgumentError with the message of
    parse_annotation or check_turned if these refuse an annotation.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    # lxml gives up the GIL for each XML, so threads that parse at once contend for it: two take 1.8 times the CPU time.
    alone = threading.Lock()

    def parse(
        texts: np.ndarray, paths: np.ndarray, labels: np.ndarray, sizes: np.ndarray, swaps: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
        names, annotations, problem = list(map(os.fsdecode, paths.tolist())), list[Objects](), ""
        try:
            with alone:
                for text, path, real, swap in zip(texts.tolist(), names, sizes.tolist(), swaps, strict=True):
                    annotations.append(parse_annotation(text, path, form, len(classes)) if path else NOTHING)
                    check_turned(annotations[-1].size, real, path, swap)
        except ValueError as error:
            annotations, problem = [NOTHING] * len(texts), str(error)
        divisors = sizes_of(np.array([one.size for one in annotations], np.float32), sizes.__getitem__)
        boxes = targets(number_classes(annotations, numbers), labels, divisors)
        return boxes.images.astype(np.int64), boxes.boxes, boxes.labels, problem

    def in_graph(texts: tf.Tensor, paths: tf.Tensor, labels: tf.Tensor, sizes: tf.Tensor, jpegs: tf.Tensor) -> Targets:
        types = [tf.int64, tf.float32, tf.int32, tf.string]
        given = [texts, paths, labels, sizes, swaps_sides(jpegs)]
        *tensors, problem = tf.numpy_function(parse, given, types, stateful=False)
        # Raised in Python, the error would carry a traceback instead of the message alone.
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
            shapes = ([None], [None, 4], [None])
            return Targets(*(tf.ensure_shape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)))

    return in_graph
