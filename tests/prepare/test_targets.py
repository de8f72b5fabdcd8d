"""Commands that prepare data with targets other than one class."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.batches import elements
from tests.support.scenes import CLASSES, make_scenes
from tfpipe import World, make_config
from tfpipe.config import Config
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.pipeline import build_batches
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index
from tfpipe.prepare.stage import stage

MASKS = {"kind": "mask", "masks": {"images": "JPEGImages", "annotations": "Masks"}}


def config_of(filelist: Path, **data: Any) -> Config:
    settings = {
        "crop": "random_resized",
        "flip": True,
        "crop_image_size": [48, 64],
        "batch_size": 6,
        "classes": list(CLASSES),
    }
    return make_config({"data": {"train_filelist": str(filelist)} | settings | data})


def first(config: Config) -> list[Any]:
    return [batch for _, batch in zip(range(3), elements(build_batches(config)), strict=False)]


def assert_same(some: list[Any], others: list[Any]) -> None:
    for batch, other in zip(some, others, strict=True):
        one, two = tf.nest.flatten(batch[0]), tf.nest.flatten(other[0])
        assert all(np.array_equal(*pair) for pair in zip(one, two, strict=True))


CROPS = [("boxes", "random_resized"), ("labels", "random_resized"), (MASKS, "random_resized"), ("none", "boxes")]


@pytest.mark.parametrize(("targets", "crop"), CROPS, ids=["boxes", "labels", "mask", "none"])
def test_an_index_changes_nothing(tmp_path: Path, targets: Any, crop: str) -> None:
    """Images without a class have boxes of all classes, wherever these come from."""
    make_scenes(tmp_path / "scenes", 12)
    config = config_of(tmp_path / "scenes/train.txt", targets=targets, crop=crop)
    expected, count = first(config), count_crops(load_split(config.data, "train", World()))
    assert build_index(config.data, "train", World()).images == 12
    indexed = config_of(tmp_path / "scenes/train.txt", targets=targets, crop=crop, annotations="index")
    assert_same(first(indexed), expected)
    assert count_crops(load_split(indexed.data, "train", World())) == count


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("kind", ["boxes", "labels", "none"])
def test_a_staged_copy_gives_the_same(tmp_path: Path, kind: str, indexed: bool) -> None:
    make_scenes(tmp_path / "scenes", 12)
    keys = {"targets": kind, "crop": "random_resized", "annotations": "index" if indexed else "xml"}
    config = config_of(tmp_path / "scenes/train.txt", **keys | {"annotations": "auto"})
    if indexed:
        build_index(config.data, "train", World())
    expected = first(config)
    stage(config.data, ["train"], tmp_path / "copy", World())
    (tmp_path / "scenes").rename(tmp_path / "gone")
    assert_same(first(config_of(tmp_path / "copy/train.txt", **keys)), expected)


def test_masks_are_not_staged(tmp_path: Path) -> None:
    make_scenes(tmp_path / "scenes", 4)
    with pytest.raises(ConfigError, match=re.escape('copies no masks, and data.targets is "mask"')):
        stage(config_of(tmp_path / "scenes/train.txt", targets=MASKS).data, ["train"], tmp_path / "copy", World())
