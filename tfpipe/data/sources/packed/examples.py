"""Serializes and parses TFRecord examples of ImageNet, in the schema of TensorFlow's build_imagenet_data.py."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfpipe.data.images.headers import Header
from tfpipe.util.ledger import only

# Bytes before a record's data: its length and the length's checksum; bytes after it: the data's checksum.
HEAD, TAIL = 12, 4
EDGES = ("ymin", "xmin", "ymax", "xmax")


class Example(NamedTuple):
    """An image with its labels and boxes, the content of one record."""

    contents: bytes  # the encoded image: JPEG, PNG ...
    header: Header
    filename: str  # its base name
    label: int  # class number, from 0; -1 if only its objects have classes
    synset: str  # name of its class; "" if it has none
    text: str  # the class in words
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax in [0, 1]
    box_labels: np.ndarray  # int32 [k]


def serialize(example: Example) -> bytes:
    """Returns a serialized tf.train.Example, identical for equal images. It counts labels from 1; 0 means none."""
    header = example.header
    features = {
        "image/height": _ints([header.height]),
        "image/width": _ints([header.width]),
        "image/colorspace": _texts(_colorspace(header)),
        "image/channels": _ints([header.components]),
        "image/class/label": _ints([example.label + 1]),
        "image/class/synset": _texts(example.synset.encode()),
        "image/class/text": _texts(example.text.encode()),
        "image/object/bbox/label": _ints((example.box_labels + 1).tolist()),
        "image/format": _texts(header.format.encode()),
        "image/filename": _texts(example.filename.encode()),
        "image/encoded": _texts(example.contents),
    }
    for edge, values in zip(EDGES, example.boxes.T, strict=True):
        features[f"image/object/bbox/{edge}"] = tf.train.Feature(float_list=tf.train.FloatList(value=values.tolist()))
    # Sorted, since a map has no order of its own.
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def _colorspace(header: Header) -> bytes:
    if header.components < 3:  # 2: gray and alpha
        return b"GRAY"
    # The fourth component of any other format is alpha.
    return b"CMYK" if header.components == 4 and header.format == "JPEG" else b"RGB"


def _ints(values: list[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _texts(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


class ParsedRecord(NamedTuple):
    """The fields of a record that tfpipe reads."""

    contents: bytes
    filename: str  # "" if it has none
    label: int  # as stored, from 1; 0 if it has none
    synset: str  # "" if it has none
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax, as stored
    box_labels: list[int]  # from 1; the image's label if the boxes have none
    size: tuple[int, int]  # height and width, 0 if not stated


def parse_example(data: bytes) -> ParsedRecord:
    """Parses a serialized tf.train.Example.

    Raises ValueError if the data is no Example, holds no image or several, or has edge lists of different lengths.
    """
    try:
        features = tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise ValueError("it is no tf.train.Example") from error

    def value(name: str, kind: str) -> Any:
        return only(getattr(features[name], f"{kind}_list").value, name) if name in features else None

    def text(name: str) -> str:
        return (value(name, "bytes") or b"").decode()

    contents = value("image/encoded", "bytes")
    if not contents:
        raise ValueError(f"it has no image/encoded, but {', '.join(sorted(features)) or 'nothing'}")
    label = value("image/class/label", "int64") or 0
    numbers = [features[f"image/object/bbox/{edge}"] for edge in EDGES]
    edges = [edge.float_list.value or edge.int64_list.value for edge in numbers]
    if len({len(values) for values in edges}) > 1:
        raise ValueError(f"its boxes have {', '.join(str(len(values)) for values in edges)} edges (image/object/bbox)")
    box_labels = list(features["image/object/bbox/label"].int64_list.value)
    if len(box_labels) != len(edges[0]):
        box_labels = [label] * len(edges[0])
    boxes = np.array(edges, np.float32).T.reshape(-1, 4)
    size = value("image/height", "int64") or 0, value("image/width", "int64") or 0
    return ParsedRecord(contents, text("image/filename"), label, text("image/class/synset"), boxes, box_labels, size)
