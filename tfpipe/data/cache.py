"""Files kept near as they are first read, so that later epochs, each in an order of its own, leave slow storage alone.

Dataset.cache would repeat the first epoch's order; this one is keyed by image, and holds files as they are, encoded.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

KINDS = (".jpg", ".xml")
# Files looked at for the mean size.
SAMPLED = 200
# What the cache leaves free, for the test data's, for batches, and because its size is an estimate.
SPARE = 0.1
# What a file on a disk takes is a multiple of this.
BLOCK = 4096
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
        _check_space(catalog, config, world, 0, _free_memory(), "in memory")
        return _in_memory()
    folder = cache_folder(catalog, config.cache, world)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "writable").write_text("")
        kept = _kept(folder, len(catalog))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(f"data.cache: cannot use the folder {folder}: {error.strerror}") from error
    _check_space(catalog, config, world, int(kept[:, 0].sum()), free, f"on the disk of {config.cache}")
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


def _check_space(catalog: Catalog, config: DataConfig, world: World, kept: int, free: int, where: str) -> None:
    """Makes sure, before anything is filled, that what is not yet `kept` (images) fits into `free` (bytes)."""
    free //= world.local_size
    block = 1 if config.cache == "memory" else BLOCK
    images = _images_seen(catalog, config, world)
    wanted = _mean_bytes(catalog, block) * max(0, images - kept)
    room = f"{wanted / 1e9:.3g} of {free / 1e9:.3g} GB free {where}"
    shared = f", a share of one in {world.local_size} ranks" if world.local_size > 1 else ""
    if wanted > (1 - SPARE) * free:
        raise ConfigError(
            f"data.cache: {images} images need some {room}{shared}, of which a tenth is to stay free; "
            'use data.scope "shard", by which a rank keeps its share of the list alone, a folder on a larger disk '
            "that is local to the node, or null"
        )
    logger.info("cache: %s%s", room, shared)


def _images_seen(catalog: Catalog, config: DataConfig, world: World) -> int:
    """How many images a rank comes to see over all epochs."""
    if catalog.split == "train" and config.scope == "global":
        return len(catalog)
    if catalog.by_box:
        return len(np.unique(catalog.boxes.images[world.rank :: world.size]))
    return len(range(world.rank, len(catalog), world.size))


def _mean_bytes(catalog: Catalog, block: int) -> float:
    """Of an image's files. One that cannot be read is left for the pipeline to name."""
    items = np.unique(np.linspace(0, len(catalog) - 1, SAMPLED).astype(int)).tolist()
    total = 0
    for item in items:
        for path in filter(None, (catalog.paths[item], "" if catalog.boxes is not None else catalog.annotation(item))):
            try:
                total += -(-tf.io.gfile.stat(path).length // block) * block
            except tf.errors.OpError:
                continue
    return total / len(items)


def _free_memory() -> int:
    """Bytes that can be had without swapping; all there are where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
