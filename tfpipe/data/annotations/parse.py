"""Parses the annotation of an image: a Pascal VOC XML or YOLO's .txt, told apart by the end of its name."""

from tfpipe.data.annotations.voc import VocObjects, find_objects
from tfpipe.data.annotations.yolo import find_yolo_objects
from tfpipe.util.files import read_whole

YOLO = ".txt"


def parse_annotation(text: bytes, path: str) -> VocObjects:
    """Reads the objects in an annotation; raises ValueError that names `path` as find_objects and find_yolo_objects."""
    return find_yolo_objects(text, path) if path.endswith(YOLO) else find_objects(text, path)


def read_annotation(path: str) -> VocObjects:
    """Reads the objects in the file at `path`; raises OSError if it cannot be read, and ValueError."""
    return parse_annotation(read_whole(path), path)
