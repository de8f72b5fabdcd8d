"""Augmented batches: those without augmentation, each crop changed by what its position draws, from every source."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.batches import assert_same, batches
from tests.support.core import installed
from tests.support.packs import config_of, packed
from tests.support.sample import SampleData
from tfpipe import Config, make_config
from tfpipe.data.images.augment import AUGMENTATION, step_rows

STEPS = [
    "RandAugment",
    {"name": "ColorJitter", "brightness": 0.4, "saturation": 0.4},
    {"name": "GaussianBlur", "kernel_size": 5, "p": 0.5},
    {"name": "RandomErasing", "value": "random"},
]
LOOSE = {"crop": "boxes", "flip": True, "seed": 5}


def with_steps(config: Config, steps: list[Any]) -> Config:
    augment = make_config({"data": {"train_filelist": "x", "augment": steps}}).data.augment
    return config.model_copy(update={"data": config.data.model_copy(update={"augment": augment})})


def augmented(config: Config, images: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns plain crops changed as `config` says, one at a time and without TensorFlow."""
    library, result = installed(), images.copy()
    for crop, place in zip(result, positions.tolist(), strict=True):
        for number, row in enumerate(step_rows(config.data.augment)):
            seed = AUGMENTATION + config.data.seed
            crop[:] = library.operate(crop, library.draw(row, number, crop.shape[:2], seed, tuple(place)))
    return result


def check(config: Config, plain: Config | None = None) -> None:
    """Compares a config's batches with those of `plain`, or of itself without steps, changed here."""
    changed = 0
    expected = batches(with_steps(plain or config, []), count=3)
    for (images, labels, positions), (untouched, same, places) in zip(batches(config, count=3), expected, strict=True):
        np.testing.assert_array_equal(positions, places)
        np.testing.assert_array_equal(labels, same)
        np.testing.assert_array_equal(images, augmented(config, untouched, places))
        changed += int((images != untouched).any(axis=(1, 2, 3)).sum())
    assert changed > 0.8 * 3 * len(images)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"crop": "random_resized", "unit": "box", "scope": "shard"},
        {"num_channels": 1, "decoder": "graph"},
        {"num_parallel_readers": 1, "on_error": "skip"},
        {"cache": "memory"},
        {"service": 1},
    ],
)
def test_a_crop_is_changed_by_what_its_position_draws(sample: SampleData, tmp_path: Path, data: dict[str, Any]) -> None:
    config = config_of(sample, tmp_path, **{**LOOSE, **data, "augment": STEPS})
    plain = config.model_copy(update={"data": config.data.model_copy(update={"service": None})})
    check(config, plain)


@pytest.mark.parametrize("kind", ["raw", "crops", "original"])
def test_packed_data_is_augmented_alike(sample: SampleData, tmp_path: Path, kind: str) -> None:
    loose = config_of(sample, tmp_path, **LOOSE)
    packed(loose, tmp_path / "out", kind, splits=("train",))
    config = config_of(sample, tmp_path, "packed", tmp_path / "out", **LOOSE, augment=STEPS)
    check(config, None if kind == "crops" else with_steps(loose, STEPS))


def test_test_data_is_not_augmented(sample: SampleData, tmp_path: Path) -> None:
    config = config_of(sample, tmp_path, augment=STEPS)
    assert_same(batches(config, "test"), batches(with_steps(config, []), "test"))
