"""Shards as they are written: TFRecords of JPEGs, and arrays of pixels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import WHOLE_IMAGE, Catalog
from tfpipe.data.examples import HEAD, TAIL, Example, serialized
from tfpipe.data.headers import header_of
from tfpipe.data.labels import BY_OBJECT, WNID
from tfpipe.data.pictures import Picture


class Place(NamedTuple):
    """Where in its shard a picture is, in bytes."""

    offset: int
    length: int


Add = Callable[[Picture], Place]
"""Writes a picture behind the others. Raises ValueError where it is no image, OSError where it cannot be written."""


@contextmanager
def pixels(path: Path, shape: tuple[int, int, int, int]) -> Iterator[Add]:
    """An array of crops, uint8 of that shape, in NumPy's format."""
    with path.open("wb") as file:
        about = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, about)

        def add(picture: Picture) -> Place:
            place = Place(file.tell(), picture.contents.nbytes)
            file.write(picture.contents)
            return place

        yield add


@contextmanager
def tfrecords(path: Path, example: Callable[[Picture], Example]) -> Iterator[Add]:
    """TFRecords of tf.train.Examples. Raises OSError where they cannot be written."""
    end = 0
    with _as_os_error(), tf.io.TFRecordWriter(str(path)) as writer:

        def add(picture: Picture) -> Place:
            nonlocal end
            data = serialized(example(picture))
            place = Place(end + HEAD + data.index(picture.contents), len(picture.contents))
            writer.write(data)
            end += HEAD + len(data) + TAIL
            return place

        yield add


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def examples(catalog: Catalog, config: DataConfig, crops: bool) -> Callable[[Picture], Example]:
    """What a record says of a picture of `catalog`, a crop or a file."""
    words = _words(config.classes) if isinstance(config.classes, Path) else {}
    known = None if crops else catalog.boxes
    offsets = np.zeros(0, np.int64) if known is None else known.offsets(len(catalog))

    def example(picture: Picture) -> Example:
        item, label = picture.item, picture.label
        synset = "" if label == BY_OBJECT else catalog.classes[label]
        boxes, labels = WHOLE_IMAGE, np.array([label])
        if known is not None:
            # An image that is its own target has no box.
            own = slice(offsets[item], offsets[item + 1] if catalog.annotated[item] else offsets[item])
            boxes, labels = known.boxes[own], known.labels[own]
        header = header_of(picture.contents, catalog.paths[item])
        text = words.get(synset, synset)
        return Example(picture.contents, header, catalog.paths.name(item), label, synset, text, boxes, labels)

    return example


def _words(path: Path) -> dict[str, str]:
    """Of LOC_synset_mapping.txt's lines `n01440764 tench, Tinca tinca`: what each class is in words."""
    lines = (line.strip().split(maxsplit=1) for line in path.read_text().splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2 and WNID.fullmatch(words[0])}
