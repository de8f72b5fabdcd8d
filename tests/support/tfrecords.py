"""TFRecords of any features."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

LISTS = {"bytes": tf.train.BytesList, "int64": tf.train.Int64List, "float": tf.train.FloatList}


def write_examples(path: Path, *examples: Mapping[str, Any], compression: str = "") -> None:
    """Writes features by name: bytes, whole numbers or floats, each alone or as a list or an array of one type."""
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for values in examples:
            features = tf.train.Features(feature={name: _feature(value) for name, value in values.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def _feature(value: Any) -> tf.train.Feature:
    values = [value] if isinstance(value, bytes | int) else value
    kind = {"i": "int64", "f": "float"}.get(np.asarray(values).dtype.kind, "bytes")
    return tf.train.Feature(**{f"{kind}_list": LISTS[kind](value=values)})
