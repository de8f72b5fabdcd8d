"""Estimates, before a run starts, whether a cache will fit, so that no run fails after hours."""

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
FREE_SHARE = 0.1
# Allocation unit of file systems, in bytes.
BLOCK = 4096


def check_space(split: Split, kept: np.ndarray | None = None) -> None:
    """Checks that a cache fits into the free memory or disk space of this host; logs both sizes.

    `data.cache` is "memory", of which each rank has a cache of its own, or an existing folder, which the ranks of a
    host share; `kept` (bool, one for each image) says which images are in it already. Raises ConfigError if the cache
    does not fit; the message has both sizes, and what to do.
    """
    folder, seen, sharing = split.config.cache, _images_seen(split), split.world.local_size
    missing = seen if kept is None else seen[~kept[seen]]
    free, location, block = free_memory(), "in memory", 1
    if isinstance(folder, Path):
        free, location, block = shutil.disk_usage(folder).free, f"on the disk of {folder}", BLOCK
        # Ranks that read all images cache the same ones; otherwise each has others.
        sharing = 1 if len(seen) == len(split.catalog) else sharing
    free //= sharing
    needed = mean_bytes(split, block) * len(missing)
    room = f"{needed / 1e9:.3g} of {free / 1e9:.3g} GB free {location}"
    if sharing > 1:
        room += f" for each of {counted(sharing, 'rank')}"
    if needed > (1 - FREE_SHARE) * free:
        raise ConfigError(
            f"data.cache: the {split.catalog.split} data's {counted(len(missing), 'image')} will take {room}, a tenth "
            'of which is kept free; use data.scope "shard", by which a rank keeps its share alone, a folder on a '
            "larger disk that is local to the node, or null"
        )
    logger.info("cache: %s", room)


def _images_seen(split: Split) -> np.ndarray:
    """Returns the numbers of the different images that a rank reads over all epochs."""
    boxes, world, images = split.catalog.sampled_boxes, split.world, np.arange(len(split.catalog))
    if boxes is not None and split.config.scope == "shard":
        return np.unique(boxes.images[world.rank :: world.size])
    if split.training and split.config.scope == "global":
        return images
    return images[world.rank :: world.size]


def mean_bytes(split: Split, block: int) -> float:
    """Estimates the mean bytes of an image's files; leaves it to the pipeline to report unreadable ones."""
    catalog, total = split.catalog, 0
    items = evenly_spaced(len(catalog), SAMPLED)
    for item in items:
        # URLs are asked for their sizes alone, if TensorFlow knows their scheme.
        files = catalog.files_of(item) if catalog.paths.remote else split.files(item)
        if not files:
            with suppress(OSError, ValueError):
                total += len(split.image(item))
        for path in files:
            with suppress(tf.errors.OpError):
                total += -(-tf.io.gfile.stat(path).length // block) * block
    return total / len(items)
