"""TFRecords of ImageNet, in the schema of TensorFlow's build_imagenet_data.py: made from an image, and read back."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.headers import Header

# Before a record's data: its length and that one's checksum; behind it: the data's.
HEAD, TAIL = 12, 4
COLORSPACES = {1: b"GRAY", 3: b"RGB", 4: b"CMYK"}
EDGES = ("ymin", "xmin", "ymax", "xmax")


class Example(NamedTuple):
    """An image, as a record has it."""

    contents: bytes  # of a JPEG, or PNG ...
    header: Header
    filename: str  # its base name
    label: int  # number of its class, from 0; -1 where only its objects have one
    synset: str  # its class's name; "" where it has none
    text: str  # the same in words
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax in [0, 1]
    box_labels: np.ndarray  # int32 [k]


def serialized(example: Example) -> bytes:
    """A serialized tf.train.Example; the same for the same image, to the byte. Labels count from 1, as they do there;
    0 is none."""
    header = example.header
    features = {
        "image/height": _ints([header.height]),
        "image/width": _ints([header.width]),
        "image/colorspace": _texts(COLORSPACES[header.components]),
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


def _ints(values: list[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _texts(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
