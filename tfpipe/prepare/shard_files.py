"""Writes shards: TFRecords of image files or crops, and NumPy arrays of pixels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.cleaning import BY_OBJECT, WHOLE_IMAGE
from tfpipe.data.catalog.labels import read_words
from tfpipe.data.images.headers import header_of
from tfpipe.data.runtime.op_errors import as_os_error
from tfpipe.data.sources.packed.examples import HEAD, TAIL, Example, serialized
from tfpipe.data.split import Split
from tfpipe.prepare.pictures import Picture

Add = Callable[[Picture], tuple[int, int]]
"""Appends a picture to a shard; returns the offset and the length of its bytes there.

Raises ValueError if it is not an image, OSError if it cannot be written.
"""


@contextmanager
def pixels(path: Path, shape: tuple[int, int, int, int]) -> Iterator[Add]:
    """Opens a shard for crops as a uint8 array of that shape, in NumPy's format."""
    with path.open("wb") as file:
        about = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, about)

        def add(picture: Picture) -> tuple[int, int]:
            start = file.tell()
            return start, file.write(picture.contents)

        yield add


@contextmanager
def tfrecords(path: Path, example: Callable[[Picture], Example]) -> Iterator[Add]:
    """Opens a shard for TFRecords of tf.train.Examples; raises OSError if it cannot be written."""
    end = 0
    with as_os_error(), tf.io.TFRecordWriter(str(path)) as writer:

        def add(picture: Picture) -> tuple[int, int]:
            nonlocal end
            data = serialized(example(picture))
            start = end + HEAD + data.index(picture.contents)
            writer.write(data)
            end += HEAD + len(data) + TAIL
            return start, len(picture.contents)

        yield add


def examples(split: Split, *, crops: bool) -> Callable[[Picture], Example]:
    """Returns a function that makes the record of a picture of `split`: of a crop, or of a file with its boxes."""
    catalog, classes = split.catalog, split.config.classes
    words = read_words(classes) if isinstance(classes, Path) else {}
    known = None if crops else catalog.boxes
    offsets = np.zeros(0, np.int64) if known is None else known.offsets(len(catalog))

    def example(picture: Picture) -> Example:
        item, label = picture.item, picture.label
        synset = "" if label == BY_OBJECT else catalog.classes[label]
        boxes, labels = WHOLE_IMAGE, np.array([label])
        if known is not None:
            # Without an annotation the catalog has the whole image as the target; the record has no box then.
            own = slice(offsets[item], offsets[item + 1] if catalog.annotated[item] else offsets[item])
            boxes, labels = known.boxes[own], known.labels[own]
        header = header_of(picture.contents, catalog.paths[item])
        text = words.get(synset, synset)
        return Example(picture.contents, header, catalog.paths.name(item), label, synset, text, boxes, labels)

    return example
