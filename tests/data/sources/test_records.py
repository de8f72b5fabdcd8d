"""Images that Python reads: the function's bytes reach the pipeline, and its errors the user."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.images import encoded, picture
from tests.support.targets import LABEL, catalog_of, data_config
from tfpipe import Stream, World
from tfpipe.data.annotations.cleaning import Boxes
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.pipeline import read, visit
from tfpipe.data.sources.records import OwnSplit
from tfpipe.errors import ConfigError

COUNT = 70
PICTURES = [encoded(picture(8 + number % 5, 10 + number % 3, number)) for number in range(COUNT)]


def catalog() -> Catalog:
    numbers = np.arange(COUNT, dtype=np.int32)
    boxes = Boxes(numbers, np.tile(np.float32([0, 0, 1, 1]), (COUNT, 1)), np.full(COUNT, LABEL, np.int32))
    return replace(catalog_of([LABEL] * COUNT), boxes=boxes)


def split_of(world: World = World(), **keys: object) -> OwnSplit:
    return OwnSplit(data_config(**keys), catalog(), world, PICTURES.__getitem__)


@pytest.mark.parametrize("per_call", [1, 32])
def test_each_image_has_its_own_file_and_size(per_call: int) -> None:
    split = replace(split_of(World(1, 2), shuffle_buffer=0), images_per_call=per_call)
    elements = list(read(visit(split, Stream.start(2)).take(COUNT // 2), split).as_numpy_iterator())
    assert [int(each.visit.item) for each in elements] == list(range(1, COUNT, 2))
    for each in elements:
        item = int(each.visit.item)
        assert each.jpeg == PICTURES[item] == split.image(item)
        assert each.size.tolist() == [8 + item % 5, 10 + item % 3] and each.annotation == b""


@pytest.mark.parametrize("error", [OSError("the disk is gone"), ValueError("no such key")])
def test_an_error_names_the_image(error: Exception) -> None:
    def image(item: int) -> bytes:
        if item == 5:
            raise error
        return PICTURES[item]

    split = OwnSplit(data_config(), catalog(), World(), image)
    contents, *_ = split.loader()(np.array([4, 6]))
    assert contents.tolist() == [PICTURES[4], PICTURES[6]]
    with pytest.raises(ValueError, match=f"^/x/5.JPEG: {error}$"):
        split.loader()(np.array([4, 5, 6]))


def test_without_known_boxes_images_are_used_whole_and_no_xml_is_asked_for() -> None:
    plain = catalog_of([LABEL] * COUNT)
    split = OwnSplit(data_config(), plain, World(), PICTURES.__getitem__)
    assert count_crops(split) == (COUNT, True)
    weighted = replace(
        split,
        config=data_config(class_weights={"n01": 1, "n02": 2, "n03": 3}),
        catalog=replace(plain, labels=np.arange(COUNT) % 3),
    )
    assert count_crops(weighted) == (COUNT, False)
    boxes = with_boxes(plain, split.storage, World()).boxes
    assert boxes.images.tolist() == list(range(COUNT)) and (boxes.boxes == [0, 0, 1, 1]).all()
    wrong = replace(split, catalog=replace(plain, annotated=np.ones(COUNT, bool)))
    with pytest.raises(ConfigError, match=r"^cannot read the boxes of train data: train\.txt holds no XMLs$"):
        count_crops(wrong)


def test_what_finds_a_failure_reads_one_image_a_call() -> None:
    split = split_of()
    assert (split.serial().images_per_call, split.images_per_call) == (1, 32)


def test_a_cache_of_files_is_refused() -> None:
    split = split_of(cache="memory")
    with pytest.raises(ConfigError, match=r"^data\.cache is for files, and train\.txt has none: leave it out$"):
        split.read(visit(split, Stream.start(1)))
