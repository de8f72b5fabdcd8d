"""Whether what a rank's cache comes to hold fits: estimated before anything is kept, so that no run fails in hours."""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

# Images looked at for the mean size.
SAMPLED = 200
# What stays free: for the test data's cache, for batches, and because the size is an estimate.
SPARE = 0.1
# What a file on a disk takes is a multiple of this.
BLOCK = 4096


def check_space(catalog: Catalog, config: DataConfig, world: World, kept: int = 0) -> None:
    """Makes sure that the cache of a rank fits into its share of the memory, or of the disk, that is free; logs it.

    Args:
        catalog: of the split.
        config: its `cache` is "memory" or a folder that is there.
        world: which rank; those on its host have equal shares.
        kept: images whose files are there already.

    Raises:
        ConfigError: it does not fit; gives both sizes, and what to do.
    """
    if config.cache == "memory":
        free, where, block = _free_memory(), "in memory", 1
    else:
        free, where, block = shutil.disk_usage(config.cache).free, f"on the disk of {config.cache}", BLOCK
    free //= world.local_size
    images = _images_seen(catalog, config, world)
    wanted = _mean_bytes(catalog, block) * max(0, images - kept)
    room = f"{wanted / 1e9:.3g} of {free / 1e9:.3g} GB free {where}"
    if world.local_size > 1:
        room += f" for each of {world.local_size} ranks"
    if wanted > (1 - SPARE) * free:
        raise ConfigError(
            f"data.cache: the {catalog.split} data's {images} images need {room}, a tenth of which is kept free; "
            'use data.scope "shard", by which a rank keeps its share of the list alone, a folder on a larger disk '
            "that is local to the node, or null"
        )
    logger.info("cache: %s", room)


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
