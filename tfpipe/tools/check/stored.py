"""Checks the images of a source that no filelist names, by loading each as training does."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.failures.diagnose import replay
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.sources.source import Source
from tfpipe.distributed import World
from tfpipe.tools.check.kinds import bits
from tfpipe.tools.check.result import Checked
from tfpipe.util.progress import progress


def check_stored(source: Source, config: DataConfig, split: str, world: World) -> Checked:
    """Loads every image of `split` once, shared by the ranks; every rank must call.

    Raises ConfigError if the source cannot be used.
    """
    config = config.model_copy(update={"unit": "image"})
    catalog = source.catalog(split, world)
    items = np.arange(world.rank, catalog.samples, world.size)
    located = tf.data.Dataset.from_tensor_slices(SampleRef(items, items, np.zeros_like(items))).map(
        Lookup(catalog).located
    )
    loaded = progress(replay(located, catalog, config), len(items), f"checking {split} data", "image", world.rank == 0)
    reasons: dict[int, str] = {}
    for item, outcome in zip(items.tolist(), loaded, strict=True):
        if isinstance(outcome, tf.errors.OpError):
            image, _ = catalog.image_and_box(item)
            reasons[image] = catalog.source.explain(catalog, config, image, outcome).reason
    reasons = {image: reason for part in world.gather(reasons) for image, reason in part.items()}
    codes = np.zeros(len(catalog), np.int64)
    codes[list(reasons)] = bits({"undecodable"})
    counts = np.bincount(catalog.labels[catalog.labels >= 0], minlength=len(catalog.classes))
    classes = {} if catalog.by_object else dict(zip(catalog.classes, counts.tolist(), strict=True))
    digests = np.zeros(len(catalog), "V16")
    return Checked(split, Path(source.place), catalog, 0, False, classes, codes, digests, reasons)
