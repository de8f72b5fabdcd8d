"""Parses the annotation of an image: a Pascal VOC XML or YOLO's .txt, told apart by the end of its name."""

from tfpipe.data.annotations.voc import VocObjects, find_objects
from tfpipe.data.annotations.yolo import find_yolo_objects
from tfpipe.util.files import read_whole

YOLO = ".txt"


def parse_annotation(text: bytes, path: str, classes: int = 0) -> VocObjects:
    """Reads the objects in an annotation; `classes` is their number, 0 if it is not known.

    Raises ValueError that names `path` as find_objects and find_yolo_objects.
    """
    return find_yolo_objects(text, path, classes) if path.endswith(YOLO) else find_objects(text, path)


def read_annotation(path: str, classes: int = 0) -> VocObjects:
    """Reads the objects in the file at `path`; raises OSError if it cannot be read, and ValueError."""
    return parse_annotation(read_whole(path), path, classes)
