"""Contents cached in memory or on a disk, keyed by number, with access to them in graph."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

IN_A_FOLDER = 1000
SEAL = 20


class Store(NamedTuple):
    """In-graph access to the cached contents of one kind, keyed by number."""

    find: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """(number (int64), source (string), e.g. a path) -> its contents (string), "" if not cached."""
    keep: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
    """(number, source, contents) -> the contents, after they have been cached."""


def in_memory() -> Store:
    """Returns a store in memory that is empty."""
    with tf.device("CPU"):
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "")

    def keep(item: tf.Tensor, _source: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([table.insert(item, contents)]):
            return tf.identity(contents)

    return Store(lambda item, _source: tf.ensure_shape(table.lookup(item), []), keep)


def on_disk(folder: Path, kind: str, kept: np.ndarray) -> Store:
    """Returns the store of the files `kind`, e.g. ".jpg", in a folder; `kept` (bool [n]): the numbers that it has."""
    with tf.device("CPU"):
        # A flag per number: TensorFlow has no op that tests for a file, and a system call would cost more.
        is_kept = tf.Variable(kept, trainable=False)

    def file(item: tf.Tensor) -> tf.Tensor:
        return tf.strings.join([f"{folder}/", tf.as_string(item // IN_A_FOLDER), "/", tf.as_string(item), kind])

    def keep(item: tf.Tensor, source: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.io.write_file(file(item), contents + _seal(source, contents))]):
            update = is_kept.scatter_update(tf.IndexedSlices(values=True, indices=item))
        with tf.control_dependencies([update]):
            return tf.identity(contents)

    def read(item: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        sealed = tf.io.read_file(file(item))
        end = tf.maximum(tf.strings.length(sealed) - SEAL, 0)
        contents = tf.strings.substr(sealed, 0, end)
        intact = tf.equal(tf.strings.substr(sealed, end, SEAL), _seal(source, contents))
        return tf.where(intact, contents, "")

    return Store(lambda item, source: tf.cond(is_kept.sparse_read(item), lambda: read(item, source), lambda: ""), keep)


def _seal(source: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
    """Returns a hash of SEAL digits that ends a cached file: a file cut short by a killed run does not match it."""
    return tf.strings.as_string(tf.strings.to_hash_bucket_fast(source + contents, 2**63 - 1), width=SEAL, fill="0")


def kept_in(folder: Path, kinds: tuple[str, ...], count: int) -> np.ndarray:
    """Returns which numbers have a file of each kind, complete or not, as bool [count, kinds]."""
    result = np.zeros((count, len(kinds)), bool)
    for part in filter(os.path.isdir, os.scandir(folder)):
        for name in os.listdir(part):
            item, kind = os.path.splitext(name)
            if item.isdecimal() and int(item) < count and kind in kinds:
                result[int(item), kinds.index(kind)] = True
    return result


def file_in(folder: Path, item: int, kind: str) -> Path:
    """Returns the path of a number's file in a folder: that of 1234 is 1/1234.jpg."""
    return folder / f"{item // IN_A_FOLDER}/{item}{kind}"
