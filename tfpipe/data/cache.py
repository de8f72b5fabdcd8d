"""Files kept near as they are first read, so that later epochs, each in an order of its own, leave slow storage alone.

Dataset.cache would repeat the first epoch's order; this one is keyed by image, and holds files as they are, encoded.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.remote import Fetcher
from tfpipe.data.space import check_space
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

KINDS = (".jpg", ".xml")
IN_A_FOLDER = 1000
SEAL = 20

Reader = Callable[[tf.Tensor, tf.Tensor, str], tf.Tensor]
"""In graph: from an image's number (int64), a path (string) and which of KINDS it is to the file's bytes (string)."""


class Store(NamedTuple):
    """Contents of one kind, kept by number; in graph."""

    find: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """From a number (int64) and of what it is (string, as a path) to its contents (string), "" where none are kept."""
    keep: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
    """Of the same and the contents: gives those back, once they are kept."""


def reader(catalog: Catalog, config: DataConfig, world: World) -> Reader:
    """Reads files through the cache that `data.cache` asks for; empty files are never kept.

    Raises:
        ConfigError: as open_stores.
    """
    if config.cache is None or config.cache_stage != "files":
        return lambda _item, path, _kind: tf.io.read_file(path)
    stores = open_stores(catalog, config, world, KINDS, len(catalog), catalog.paths.digest[:16])

    def read(item: tf.Tensor, path: tf.Tensor, kind: str) -> tf.Tensor:
        contents = stores[kind].find(item, path)
        from_source = tf.equal(contents, "")
        return tf.cond(from_source, lambda: stores[kind].keep(item, path, tf.io.read_file(path)), lambda: contents)

    return read


def open_stores(
    catalog: Catalog, config: DataConfig, world: World, kinds: tuple[str, ...], count: int, name: str
) -> dict[str, Store]:
    """Where `data.cache` says, a store for each of some kinds of contents, numbered below `count`.

    Raises:
        ConfigError: what this rank will come to see does not fit, or the cache's folder cannot be made or written.
    """
    if not isinstance(config.cache, Path):  # "memory"
        check_space(catalog, config, world)
        return {kind: _in_memory() for kind in kinds}
    folder = cache_folder(name, config.cache, world)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "writable").write_text("")
        kept = _kept(folder, kinds, count)
    except OSError as error:
        raise ConfigError(f"data.cache: cannot use the folder {folder}: {error.strerror}") from error
    check_space(catalog, config, world, int(kept[:, 0].sum()))
    return {kind: _on_disk(folder, kind, kept[:, place]) for place, kind in enumerate(kinds)}


def cache_folder(name: str, root: Path, world: World) -> Path:
    """Where a rank keeps what is so named: number 1234 is 1/1234.jpg in there, and 1/1234.xml."""
    return root / f"tfpipe-{name}-{world.rank}of{world.size}"


def forget(catalog: Catalog, config: DataConfig, world: World, item: int) -> None:
    """Drops what is kept on disk of image `item`, so that its files are read anew once they are repaired."""
    if catalog.remote is not None:
        Fetcher(catalog.remote, catalog.paths.folders).forget([catalog.paths[item], catalog.annotation(item)])
    if isinstance(config.cache, Path):
        for kind in KINDS:
            file = cache_folder(catalog.paths.digest[:16], config.cache, world) / f"{item // IN_A_FOLDER}/{item}{kind}"
            file.unlink(missing_ok=True)


def _in_memory() -> Store:
    with tf.device("CPU"):
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "")

    def keep(item: tf.Tensor, _of: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([table.insert(item, contents)]):
            return tf.identity(contents)

    return Store(lambda item, _of: tf.ensure_shape(table.lookup(item), []), keep)


def _on_disk(folder: Path, kind: str, kept: np.ndarray) -> Store:
    with tf.device("CPU"):
        # A bit, so to say, for each file; asking the disk itself would cost more, and no op does.
        is_kept = tf.Variable(kept, trainable=False)

    def file(item: tf.Tensor) -> tf.Tensor:
        return tf.strings.join([f"{folder}/", tf.as_string(item // IN_A_FOLDER), "/", tf.as_string(item), kind])

    def keep(item: tf.Tensor, of: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.io.write_file(file(item), contents + _seal(of, contents))]):
            known = is_kept.scatter_update(tf.IndexedSlices(True, item))
        with tf.control_dependencies([known]):
            return tf.identity(contents)

    def read(item: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
        sealed = tf.io.read_file(file(item))
        end = tf.maximum(tf.strings.length(sealed) - SEAL, 0)
        contents = tf.strings.substr(sealed, 0, end)
        whole = tf.equal(tf.strings.substr(sealed, end, SEAL), _seal(of, contents))
        return tf.where(whole, contents, "")

    return Store(lambda item, of: tf.cond(is_kept.sparse_read(item), lambda: read(item, of), lambda: ""), keep)


def _seal(of: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
    """SEAL digits that a file ends in if it is `of` that and was written whole: a run may be killed at any moment."""
    return tf.strings.as_string(tf.strings.to_hash_bucket_fast(of + contents, 2**63 - 1), width=SEAL, fill="0")


def _kept(folder: Path, kinds: tuple[str, ...], count: int) -> np.ndarray:
    """bool [count, kinds]: of which numbers there is a file of each kind, whole or not."""
    result = np.zeros((count, len(kinds)), bool)
    for part in filter(os.path.isdir, os.scandir(folder)):
        for name in os.listdir(part):
            item, kind = os.path.splitext(name)
            if item.isdecimal() and int(item) < count and kind in kinds:
                result[int(item), kinds.index(kind)] = True
    return result
