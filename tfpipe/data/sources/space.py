"""Estimates, before a run starts, whether a rank's cache will fit, so that no run fails after hours."""

import logging
import math
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.parse import parse_annotation
from tfpipe.data.order.sampling import evenly_spaced
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.memory import free_memory

logger = logging.getLogger(__name__)

# Number of images sampled for the mean size.
SAMPLED = 200
# Share that must stay free: for the test data's cache, for batches, and because the size is an estimate.
SPARE = 0.1
# Allocation unit of file systems, in bytes.
BLOCK = 4096


def check_space(split: Split, kept: int = 0) -> None:
    """Checks that a rank's cache fits into its share of the free memory or disk space; logs both sizes.

    `data.cache` is "memory" or an existing folder; the ranks of a host have equal shares; `kept` images (samples if
    crops are cached) are in the cache already. Raises ConfigError if the cache does not fit; the message has both
    sizes, and what to do.
    """
    config, world = split.config, split.world
    if isinstance(config.cache, Path):
        free, location, block = shutil.disk_usage(config.cache).free, f"on the disk of {config.cache}", BLOCK
    else:
        free, location, block = free_memory(), "in memory", 1
    free //= world.local_size
    if config.cache_stage == "crops":
        seen = _seen(split, split.catalog.samples)
        what, mean = (
            f"crops of {seen} {'boxes' if split.catalog.by_box else 'images'}",
            _mean_crop_bytes(split, block),
        )
    else:
        seen = _images_seen(split)
        what, mean = f"{seen} images", mean_bytes(split, block)
    needed = mean * max(0, seen - kept)
    room = f"{needed / 1e9:.3g} of {free / 1e9:.3g} GB free {location}"
    if world.local_size > 1:
        room += f" for each of {world.local_size} ranks"
    if needed > (1 - SPARE) * free:
        raise ConfigError(
            f"data.cache: the {split.catalog.split} data's {what} need {room}, a tenth of which is kept free; "
            'use data.scope "shard", by which a rank keeps its share of the list alone, a folder on a larger disk '
            "that is local to the node, or null"
        )
    logger.info("cache: %s", room)


def _images_seen(split: Split) -> int:
    """Returns the number of different images that a rank reads over all epochs."""
    boxes, world = split.catalog.sampled_boxes, split.world
    if boxes is not None and split.config.scope == "shard":
        return len(np.unique(boxes.images[world.rank :: world.size]))
    return _seen(split, len(split.catalog))


def _seen(split: Split, count: int) -> int:
    """Returns how many of `count` samples a rank reads over all epochs: all, or its share if that never changes."""
    if split.training and split.config.scope == "global":
        return count
    return len(range(split.world.rank, count, split.world.size))


def _mean_crop_bytes(split: Split, block: int) -> float:
    """Estimates the mean bytes of a sample's crops; without known boxes, counts the objects in sampled XMLs."""
    catalog, config = split.catalog, split.config
    size = math.prod(config.crop_image_size) * config.num_channels
    if catalog.by_box or config.crop_for(catalog.split) != "boxes":
        counts: Iterable[int] = [1]
    elif catalog.boxes is not None:
        counts = np.diff(catalog.boxes.offsets(len(catalog)))
    else:
        counts = [_objects(split, catalog.annotation(item)) for item in evenly_spaced(len(catalog), SAMPLED)]
    return float(np.mean(-(-(np.array(list(counts)) * size) // block) * block))


def _objects(split: Split, annotation: str) -> int:
    """Returns the number of objects in an XML, at least 1."""
    try:
        (text,) = split.storage.contents([annotation]) if split.storage and annotation else (None,)
        return 1 if text is None else max(1, len(parse_annotation(text, annotation).names))
    except (OSError, ValueError, TfpipeError):  # the pipeline will report it
        return 1


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
