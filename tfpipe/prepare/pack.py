"""Packs a split into shards, in parallel over threads and ranks; an interrupted pack can be continued."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog.boxes import read_boxes
from tfpipe.data.sources.packed.shards import Kind
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.prepare.pack_plan import PackPlan, ShardPlan
from tfpipe.prepare.pack_work import PackSummary, Work

__all__ = ["PackPlan", "PackSummary", "pack"]

# Images per shard, as in TensorFlow's scripts: 1,024 shards of ImageNet's training data, 128 of its validation data.
IN_A_SHARD = {"train": 1252, "test": 391}
SUBSAMPLING = "420"
# Settings of the packed data's own order. As in those scripts, training data is shuffled before packing, for readers
# that go through it shard by shard.
SAME = {
    "unit": "image",
    "scope": "global",
    "seed": 12345,
    "shuffle_buffer": 2,
    "reshuffle_each_iteration": False,
    "flip": False,
    "cache": None,
    "service": None,
    "storage_delay_ms": 0.0,
    "class_weights": None,
}


def pack(config: DataConfig, split: str, folder: Path, plan: PackPlan, world: World) -> PackSummary | None:
    """Packs `split` into `folder`; returns its statistics.

    The ranks share the shards. Shards that an interrupted pack of the same data finished are reused. Rank 0 holds a
    lock, so that two packs never write the same folder. The output is identical to the byte for any number of ranks.
    `config` gives the data, and how it is cropped; `folder` may already hold the other split. Raises ConfigError if the
    config or the folder cannot be used, the disk is too small, or an image cannot be used.
    """
    _check_config(config, split, plan.kind)
    work = plan_work(config, split, folder, plan, world)
    with ExitStack() as held:
        missing = world.from_rank0(lambda: work.start(held))
        errors = [error for rank in world.on_all(lambda: work.write(world.mine(missing))) for error in rank]
        if errors:
            raise ConfigError("\n  ".join([f"{split} data is not all packed (finished shards are kept):", *errors]))
        return world.from_rank0(work.finish)


def _check_config(config: DataConfig, split: str, kind: Kind) -> None:
    open_source(config).check_use("pack")
    if isinstance(config.train_filelist, list):
        raise ConfigError("data.train_filelist mixes several lists: pack each by itself, from a config of its own")
    if kind != "original" and config.crop_for(split) == "random_resized":
        raise ConfigError(
            'data.crop "random_resized" cuts other crops in each epoch, so they cannot be packed: use --kind original'
        )


def plan_work(config: DataConfig, split: str, folder: Path, plan: PackPlan, world: World) -> Work:
    """Loads the catalog, with boxes if needed, and divides the packing order into shards."""
    original = {"crop": "boxes", "test_crop": "boxes"} if plan.kind == "original" else {}
    config = config.model_copy(update=SAME | original)
    loaded = load_split(config, split, world)
    # Stored, but without effect on the order of packing.
    weights, catalog = loaded.catalog.weights, replace(loaded.catalog, weights=None)
    counts: np.ndarray = np.ones(len(catalog), np.int64)
    if config.crop_for(split) == "boxes":
        boxes = catalog.boxes
        if boxes is None:
            boxes = read_boxes(catalog, loaded.storage, world)
        catalog = replace(catalog, boxes=boxes)
        if plan.kind != "original":
            counts = np.diff(boxes.offsets(len(catalog)))
    loaded = replace(loaded, catalog=catalog)
    firsts = np.append(0, np.cumsum(counts[loaded.order.items(np.arange(len(catalog)))]))
    shards = min(plan.shards or -(-len(catalog) // IN_A_SHARD[split]), len(catalog))
    bounds = np.arange(shards + 1) * len(catalog) // shards
    jpeg = {"quality": plan.quality, "subsampling": SUBSAMPLING} if plan.kind == "crops" else None
    return Work(loaded, ShardPlan(folder, split, plan.kind, bounds, firsts), jpeg, weights)
