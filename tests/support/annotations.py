"""Reads an annotation as a file."""

from pathlib import Path

from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import Objects


def read_annotation(path: str, form: str = "voc") -> Objects:
    return parse_annotation(Path(path).read_bytes(), path, form)
