"""Targets: the boxes of the annotated objects that may be cropped, looked up or parsed, in graph."""

import os
import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.cleaning import Boxes, is_stated, numbered, targets
from tfpipe.data.annotations.parse import parse_annotation
from tfpipe.data.annotations.voc import NOTHING
from tfpipe.data.images.crops import Targets
from tfpipe.data.runtime.columns import columns


class KnownTargets:
    """The boxes that are known from the start, looked up in graph, by image or, if boxes are samples, by box."""

    def __init__(self, boxes: Boxes, offsets: np.ndarray | None, *, sent: bool = False) -> None:
        """Holds `boxes`; `offsets` (int [images + 1]) says where each image's start, None if every box is a sample.

        `sent`: the graph goes to other processes, which need the boxes in it.
        """
        arrays = [boxes.boxes, boxes.labels, *([] if offsets is None else [offsets])]
        self._boxes, self._labels, *starts = columns(*arrays, sent=sent)
        self._offsets = starts[0] if starts else None

    def at(self, samples: tf.Tensor) -> Targets:
        """Returns the targets of `samples` (int64 [n]), which are boxes or images."""
        if self._offsets is None:
            images, boxes = tf.range(tf.size(samples, tf.int64)), samples
        else:
            ranges = tf.ragged.range(self._offsets.at(samples), self._offsets.at(samples + 1))
            images, boxes = ranges.value_rowids(), ranges.values
        return Targets(images, self._boxes.at(boxes), self._labels.at(boxes))


def parse_targets(
    texts: tf.Tensor, paths: tf.Tensor, labels: tf.Tensor, sizes: tf.Tensor, classes: Sequence[str]
) -> Targets:
    """Parses n XMLs (string [n]; ignored if its path is "") and returns the boxes to crop, by Python: cleaning.targets.

    `labels` (int32 [n]) are those of n images, or BY_OBJECT; `sizes` (int32 [n, 2]), their heights and widths, are used
    if an XML does not state them; `classes` are in the order of the class numbers. An XML takes 60
    microseconds of CPU time, one call at a time (profiles/annotations.py); an index saves it.

    Raises:
        tf.errors.InvalidArgumentError: parse_annotation refuses an XML; has its message.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    # lxml gives up the GIL for each XML, so threads that parse at once contend for it: two take 1.8 times the CPU time.
    alone = threading.Lock()

    def parse(
        texts: np.ndarray, paths: np.ndarray, labels: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
        pairs = zip(texts.tolist(), paths.tolist(), strict=True)
        try:
            with alone:
                xmls = [parse_annotation(text, os.fsdecode(path)) if path else NOTHING for text, path in pairs]
            problem = ""
        except ValueError as error:
            xmls, problem = [NOTHING] * len(texts), str(error)
        stated = np.array([xml.size for xml in xmls], np.float32)
        sizes = np.where(is_stated(stated)[:, None], stated, sizes.astype(np.float32))
        boxes = targets(numbered(xmls, numbers), labels, sizes)
        return boxes.images.astype(np.int64), boxes.boxes, boxes.labels, problem

    types = [tf.int64, tf.float32, tf.int32, tf.string]
    *tensors, problem = tf.numpy_function(parse, [texts, paths, labels, sizes], types, stateful=False)
    # Raised in Python, the error would carry a traceback instead of the message alone.
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        shapes = ([None], [None, 4], [None])
        return Targets(*(tf.ensure_shape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)))
