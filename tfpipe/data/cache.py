"""Files kept near as they are first read, so that later epochs, each in an order of its own, leave slow storage alone.

Dataset.cache would repeat the first epoch's order; this one is keyed by image, and holds files as they are, encoded.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.space import check_space
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

KINDS = (".jpg", ".xml")
IN_A_FOLDER = 1000
SEAL = 20

Reader = Callable[[tf.Tensor, tf.Tensor, str], tf.Tensor]
"""In graph: from an image's number (int64), a path (string) and which of KINDS it is to the file's bytes (string)."""


def reader(catalog: Catalog, config: DataConfig, world: World) -> Reader:
    """Reads files through the cache that `data.cache` asks for; empty files are never kept.

    Raises:
        ConfigError: what this rank will come to see does not fit, or the cache's folder cannot be made or written.
    """
    if config.cache is None:
        return lambda _item, path, _kind: tf.io.read_file(path)
    if config.cache == "memory":
        check_space(catalog, config, world)
        return _in_memory()
    folder = cache_folder(catalog, config.cache, world)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "writable").write_text("")
        kept = _kept(folder, len(catalog))
    except OSError as error:
        raise ConfigError(f"data.cache: cannot use the folder {folder}: {error.strerror}") from error
    check_space(catalog, config, world, int(kept[:, 0].sum()))
    return _on_disk(folder, kept)


def cache_folder(catalog: Catalog, root: Path, world: World) -> Path:
    """Where a rank keeps the files of `catalog`: item 1234 is 1/1234.jpg in there, and 1/1234.xml."""
    return root / f"tfpipe-{catalog.paths.digest[:16]}-{world.rank}of{world.size}"


def forget(catalog: Catalog, config: DataConfig, world: World, item: int) -> None:
    """Drops what is kept on disk of image `item`, so that its files are read anew once they are repaired."""
    if isinstance(config.cache, Path):
        for kind in KINDS:
            file = cache_folder(catalog, config.cache, world) / f"{item // IN_A_FOLDER}/{item}{kind}"
            file.unlink(missing_ok=True)


def _in_memory() -> Reader:
    with tf.device("CPU"):
        tables = {kind: tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "") for kind in KINDS}

    def read(item: tf.Tensor, path: tf.Tensor, kind: str) -> tf.Tensor:
        def from_source() -> tf.Tensor:
            contents = tf.io.read_file(path)
            with tf.control_dependencies([tables[kind].insert(item, contents)]):
                return tf.identity(contents)

        contents = tables[kind].lookup(item)
        return tf.cond(tf.equal(contents, ""), from_source, lambda: contents)

    return read


def _on_disk(folder: Path, kept: np.ndarray) -> Reader:
    with tf.device("CPU"):
        # A bit, so to say, for each file; asking the disk itself would cost more, and no op does.
        is_kept = {kind: tf.Variable(kept[:, place], trainable=False) for place, kind in enumerate(KINDS)}

    def read(item: tf.Tensor, path: tf.Tensor, kind: str) -> tf.Tensor:
        part, name = tf.as_string(item // IN_A_FOLDER), tf.as_string(item)
        file = tf.strings.join([f"{folder}/", part, "/", name, kind])

        def from_source() -> tf.Tensor:
            contents = tf.io.read_file(path)
            with tf.control_dependencies([tf.io.write_file(file, contents + _seal(path, contents))]):
                known = is_kept[kind].scatter_update(tf.IndexedSlices(True, item))
            with tf.control_dependencies([known]):
                return tf.identity(contents)

        def from_cache() -> tf.Tensor:
            sealed = tf.io.read_file(file)
            end = tf.maximum(tf.strings.length(sealed) - SEAL, 0)
            contents = tf.strings.substr(sealed, 0, end)
            whole = tf.equal(tf.strings.substr(sealed, end, SEAL), _seal(path, contents))
            return tf.cond(whole, lambda: contents, from_source)

        return tf.cond(is_kept[kind].sparse_read(item), from_cache, from_source)

    return read


def _seal(path: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
    """SEAL digits that a file ends in if it is of `path` and was written whole: a run may be killed at any moment."""
    return tf.strings.as_string(tf.strings.to_hash_bucket_fast(path + contents, 2**63 - 1), width=SEAL, fill="0")


def _kept(folder: Path, images: int) -> np.ndarray:
    """bool [images, 2]: of which images there is a file of each of KINDS, whole or not."""
    result = np.zeros((images, len(KINDS)), bool)
    for part in filter(os.path.isdir, os.scandir(folder)):
        for name in os.listdir(part):
            item, kind = os.path.splitext(name)
            if item.isdecimal() and int(item) < images and kind in KINDS:
                result[int(item), KINDS.index(kind)] = True
    return result
