"""The formats of an image's annotation, which `data.layout` names: one more is a module with a `parse`, and a row."""

from collections.abc import Callable
from typing import NamedTuple

from tfpipe.data.annotations import voc, yolo
from tfpipe.data.annotations.objects import MAX_BYTES, Objects


class AnnotationFormat(NamedTuple):
    """A format of annotations."""

    suffix: str
    """End of the annotations' names."""
    parse: Callable[[bytes, str, int], Objects]
    """(text, its path, number of classes or 0) -> its objects. Raises ValueError that names the path."""
    relative: bool = False
    """Whether all boxes are relative, so that the size that they are divided by is not the image's."""


FORMATS = {
    "voc": AnnotationFormat(".xml", voc.parse),
    "yolo": AnnotationFormat(".txt", yolo.parse, relative=True),
}


def parse_annotation(text: bytes, path: str, form: str = "voc", classes: int = 0) -> Objects:
    """Reads the objects in an annotation of the format `form`; `classes` is their number, 0 if it is not known.

    Raises ValueError that names `path` if it is no such annotation, or larger than MAX_BYTES.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} is too large for an annotation: {len(text)} bytes, at most {MAX_BYTES} are read")
    return FORMATS[form].parse(text, path, classes)
