"""Estimates, before a run starts, whether a rank's cache will fit, so that no run fails after hours."""

import logging
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.data.order.permutation import evenly_spaced
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError, counted
from tfpipe.util.resources import free_memory

logger = logging.getLogger(__name__)

# Number of images sampled for the mean size.
SAMPLED = 200
# Share that must stay free: for the test data's cache, for batches, and because the size is an estimate.
SPARE = 0.1
# Allocation unit of file systems, in bytes.
BLOCK = 4096


def check_space(split: Split, kept: int = 0) -> None:
    """Checks that a rank's cache fits into its share of the free memory or disk space; logs both sizes.

    `data.cache` is "memory" or an existing folder; the ranks of a host have equal shares; `kept` images are in
    the cache already. Raises ConfigError if the cache does not fit; the message has both sizes, and what to do.
    """
    config, world = split.config, split.world
    if isinstance(config.cache, Path):
        free, location, block = shutil.disk_usage(config.cache).free, f"on the disk of {config.cache}", BLOCK
    else:
        free, location, block = free_memory(), "in memory", 1
    free //= world.local_size
    seen = _images_seen(split)
    needed = mean_bytes(split, block) * max(0, seen - kept)
    room = f"{needed / 1e9:.3g} of {free / 1e9:.3g} GB free {location}"
    if world.local_size > 1:
        room += f" for each of {counted(world.local_size, 'rank')}"
    if needed > (1 - SPARE) * free:
        raise ConfigError(
            f"data.cache: the {split.catalog.split} data's {counted(seen, 'image')} will take {room}, a tenth of "
            'which is kept free; use data.scope "shard", by which a rank keeps its share alone, a folder on a larger '
            "disk that is local to the node, or null"
        )
    logger.info("cache: %s", room)


def _images_seen(split: Split) -> int:
    """Returns the number of different images that a rank reads over all epochs."""
    boxes, world, count = split.catalog.sampled_boxes, split.world, len(split.catalog)
    if boxes is not None and split.config.scope == "shard":
        return len(np.unique(boxes.images[world.rank :: world.size]))
    if split.training and split.config.scope == "global":
        return count
    return len(range(world.rank, count, world.size))


def mean_bytes(split: Split, block: int) -> float:
    """Estimates the mean bytes of an image's files; leaves it to the pipeline to report unreadable ones."""
    catalog, total = split.catalog, 0
    items = evenly_spaced(len(catalog), SAMPLED)
    for item in items:
        # URLs are asked for their sizes alone, if TensorFlow knows their scheme.
        files = catalog.opened(item) if catalog.paths.remote else split.files(item)
        if not files:
            with suppress(OSError, ValueError):
                total += len(split.image(item))
        for path in files:
            with suppress(tf.errors.OpError):
                total += -(-tf.io.gfile.stat(path).length // block) * block
    return total / len(items)
