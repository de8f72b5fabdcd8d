"""Contents of files cached in memory or on a disk, keyed by number, with access to them in graph."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.native import native

IN_A_FOLDER = 1000
DIGITS = 20
# Lengths of the ends of a cached file: the size and time of change of its source, and these with a checksum.
STAMP, SEAL = 2 * DIGITS, 3 * DIGITS

Store = Callable[[tf.Tensor, tf.Tensor, Callable[[], tf.Tensor]], tf.Tensor]
"""In graph: number (int64), path of the source (string), function that reads it -> its contents (string), cached, or
read and then cached. Empty contents count as not cached."""


def in_memory() -> Store:
    """Returns a store in memory that is empty."""
    with tf.device("CPU"):
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "")

    def contents_of(item: tf.Tensor, _source: tf.Tensor, read: Callable[[], tf.Tensor]) -> tf.Tensor:
        def keep() -> tf.Tensor:
            contents = read()
            with tf.control_dependencies([table.insert(item, contents)]):
                return tf.identity(contents)

        cached = tf.ensure_shape(table.lookup(item), [])
        return tf.cond(tf.equal(cached, ""), keep, lambda: cached)

    return contents_of


def on_disk(folder: Path, kind: str, count: int) -> Store:
    """Returns the store of the files `kind`, e.g. ".jpg", of `count` numbers in a folder that processes may share.

    Each file has the stamp that its source had before it was read. The first time that a process takes a file it
    compares that with the source's, one system call; a file whose source cannot be reached is taken. Whoever finds a
    file that is not there, not whole (another process may be writing it) or not current writes it.
    """
    with tf.device("CPU"):
        is_compared = tf.Variable(np.zeros(count, bool), trainable=False)

    def find(file: tf.Tensor, source: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the contents of a file, "" unless it is whole, and the stamp of their source."""
        sealed = tf.ensure_shape(native().read(tf.where(native().stamp(file)[0] < 0, "", file)), [])
        end = tf.maximum(tf.strings.length(sealed) - SEAL, 0)
        contents, seal = tf.strings.substr(sealed, 0, end), tf.strings.substr(sealed, end, SEAL)
        stamp = tf.strings.substr(seal, 0, STAMP)
        return tf.where(tf.equal(seal, _seal(source, contents, stamp)), contents, ""), stamp

    def contents_of(item: tf.Tensor, source: tf.Tensor, read: Callable[[], tf.Tensor]) -> tf.Tensor:
        file = tf.strings.join([f"{folder}/", tf.as_string(item // IN_A_FOLDER), "/", tf.as_string(item), kind])
        cached, before = find(file, source)
        is_cached = tf.not_equal(cached, "")

        def compare() -> tf.Tensor:
            stamp = native().stamp(source)
            now = tf.strings.reduce_join(tf.strings.as_string(stamp, width=DIGITS, fill="0"))

            def keep() -> tf.Tensor:
                with tf.control_dependencies([now]):  # first, so that a change while it is read shows
                    contents = read()
                with tf.control_dependencies([tf.io.write_file(file, contents + _seal(source, contents, now))]):
                    return tf.identity(contents)

            is_current = is_cached & (tf.equal(now, before) | (stamp[0] < 0))
            contents = tf.cond(is_current, lambda: cached, keep)
            with tf.control_dependencies([contents]):
                update = is_compared.scatter_update(tf.IndexedSlices(tf.constant(value=True), item))
            with tf.control_dependencies([update]):
                return tf.identity(contents)

        return tf.cond(is_cached & is_compared.sparse_read(item), lambda: cached, compare)

    return contents_of


def _seal(source: tf.Tensor, contents: tf.Tensor, stamp: tf.Tensor) -> tf.Tensor:
    """Returns what ends a cached file: the stamp and a hash, which a file cut short by a killed run does not match."""
    number = tf.strings.to_hash_bucket_fast(source + stamp + contents, 2**63 - 1)
    return stamp + tf.strings.as_string(number, width=DIGITS, fill="0")


def kept_in(folder: Path, kind: str, count: int) -> np.ndarray:
    """Returns which numbers have a file of a kind, complete or not, as bool [count]."""
    result = np.zeros(count, bool)
    for part in filter(os.path.isdir, os.scandir(folder)):
        for name in os.listdir(part):
            item, ending = os.path.splitext(name)
            if item.isdecimal() and int(item) < count and ending == kind:
                result[int(item)] = True
    return result


def file_in(folder: Path, item: int, kind: str) -> Path:
    """Returns the path of a number's file in a folder: that of 1234 is 1/1234.jpg."""
    return folder / f"{item // IN_A_FOLDER}/{item}{kind}"
