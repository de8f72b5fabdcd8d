"""view --epochs: the visits of one image, each epoch once, before and after what its positions draw."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.support.sample import SampleData
from tfpipe import Cursor, Stream, World, build_dataset, load_config
from tfpipe.data.sources.registry import load_split
from tfpipe.tools.view.sheet import GAP_PX
from tfpipe.tools.view.view import ViewRequest, draw_epochs, find_visits, view

STEPS = [{"name": "RandomInvert", "p": 1}]


@pytest.mark.parametrize("data", [{}, {"unit": "box"}, {"repeats": 3}, {"class_weights": "balanced"}])
def test_visits_are_the_positions_of_the_image_in_their_order(sample: SampleData, tmp_path: Path, data: dict) -> None:
    split = load_split(load_config(sample.config(tmp_path / "c.json", data=data)).data, "train", World())
    first, order = 7, split.order
    visits = list(islice(find_visits(split, first), 6))
    length = len(order.positions(0, World()))
    items = order.items(np.arange(visits[-1][1] + 1))
    every = [position for position in range(first, len(items)) if items[position] == items[first]]
    assert visits == [(epoch, min(p for p in every if p // length == epoch)) for epoch, _ in visits]
    assert [epoch for epoch, _ in visits] == sorted({position // length for position in every})


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_tile_has_the_crop_before_and_after(sample: SampleData, tmp_path: Path, repeats: int) -> None:
    data = {"augment": STEPS, "crop": "random_resized", "crop_image_size": [128, 128], "repeats": repeats}
    config = load_config(sample.config(tmp_path / "c.json", data={**data, "mix": {"mixup": 1.0}}))
    split = load_split(config.data, "train", World())
    tiles = draw_epochs(config, split, 3, 3)
    assert [tile.caption[0] for tile in tiles] == ["epoch 0", "epoch 1", "epoch 2"]
    for tile in tiles:
        position = int(tile.caption[1].removeprefix("position "))
        plain = config.model_copy(update={"data": config.data.model_copy(update={"mix": None, "augment": []})})
        rest = Stream.start(1).at([Cursor(position)])
        images, _ = next(iter(build_dataset(plain, "train", resume=rest)))
        before, after = np.split(np.delete(np.asarray(tile.picture), range(128, 128 + GAP_PX), 0), 2)
        np.testing.assert_array_equal(before, images[0])
        np.testing.assert_array_equal(after, 255 - before)


def test_the_picture_is_of_training_data(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"augment": STEPS}))
    said = view(config, ViewRequest("epochs", first=5, count=2), tmp_path / "a.png")
    assert "in 2 epochs, before data.augment and, below, after it" in said and (tmp_path / "a.png").exists()
