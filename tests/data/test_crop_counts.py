"""The number of crops in an epoch, read from the XMLs or known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.targets import (
    BOX,
    LABEL,
    OTHER_BOX,
    WHOLE,
    XMLS,
    annotation,
    catalog_of,
    data_config,
    targets_of,
    write_xmls,
)
from tfpipe.data import crop_counts
from tfpipe.data.annotations.cleaning import BY_OBJECT, Boxes
from tfpipe.data.catalog.boxes import ReadBoxes, with_boxes
from tfpipe.data.catalog.layout import LocalFiles, Storage
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import CropCount, check_share, count_crops, crops_left, own_crops
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.sources.files import FileSplit
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def split_of(
    labels: list[int], annotations: list[str] | None = None, world: World = World(), split: str = "train", **keys: Any
) -> Split:
    """Images with these labels and XMLs, as a config of these keys uses them."""
    return FileSplit(data_config(**keys), catalog_of(labels, annotations, split), world)


@pytest.mark.parametrize(
    ("keys", "by_object", "crops"),
    [
        ({"crop": "boxes"}, False, 1 + 2 + 1 + 2 + 1 + 1 + 1 + 2),
        ({"crop": "boxes", "label_source": "object"}, True, 0 + 2 + 0 + 2 + 1 + 1 + 0 + 1),
        ({"crop": "random_resized", "label_source": "object"}, True, 0 + 2 + 0 + 2 + 1 + 1 + 0 + 1),
        ({"crop": "random_resized"}, False, 8),
        ({"crop": "center"}, False, 8),
        ({"crop": "full"}, False, 8),
    ],
)
def test_an_epochs_crops_are_counted(tmp_path: Path, keys: dict[str, str], by_object: bool, crops: int) -> None:
    labels = [BY_OBJECT if by_object else LABEL] * len(XMLS)
    assert count_crops(split_of(labels, write_xmls(tmp_path, XMLS), **keys)) == CropCount(crops, exact=True)


def test_each_image_is_counted_with_its_own_label(tmp_path: Path) -> None:
    same = annotation(("n01", BOX), ("n01", OTHER_BOX), ("n03", BOX))
    split = split_of([0, 1, 2, 0, 1, 2], write_xmls(tmp_path, [same, same, same, None, same, same]))
    assert count_crops(split) == CropCount(2 + 1 + 1 + 1 + 1 + 1, exact=True)


def test_the_test_split_is_counted_as_it_is_cropped(tmp_path: Path) -> None:
    how = {"crop": "random_resized", "test_crop": "boxes"}
    split = split_of([LABEL] * len(XMLS), write_xmls(tmp_path, XMLS), split="test", **how)
    assert count_crops(split) == CropCount(11, exact=True)
    assert count_crops(replace(split, config=data_config(crop="boxes", test_crop="center"))) == CropCount(8, exact=True)


@pytest.mark.parametrize(("label", "crops"), [(LABEL, 3), (BY_OBJECT, 0)])
def test_without_an_xml_an_image_is_one_crop_or_none(label: int, crops: int) -> None:
    how = {"label_source": "object"} if label == BY_OBJECT else {}
    assert count_crops(split_of([label] * 3, **how)) == CropCount(crops, exact=True)


def test_no_xml_is_read_where_every_image_gives_one_crop() -> None:
    for crop in ("center", "full", "random_resized"):
        split = split_of([LABEL] * 3, [f"/nowhere/{number}.xml" for number in range(3)], crop=crop)
        assert count_crops(split) == CropCount(3, exact=True)


def test_more_xmls_than_are_read_are_estimated_from_all_over_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crop_counts, "COUNT_AT_MOST", 10)
    one, four = annotation(("n02", BOX)), annotation(*[("n02", BOX)] * 4)
    # Sorted as by class: the first half has one object each, the second four.
    split = split_of([LABEL] * 66, write_xmls(tmp_path, [one, None, one] * 11 + [four, None, four] * 11))
    count = count_crops(split)
    true = 22 + 22 + 88
    assert not count.exact
    assert abs(count.crops - true) < 0.1 * true


def test_an_estimate_is_made_of_no_more_xmls_than_allowed_and_scales_exactly_where_all_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crop_counts, "COUNT_AT_MOST", 10)
    read = []
    parse = crop_counts.boxes_of

    def boxes_of(catalog: Catalog, storage: Storage, items: np.ndarray, show: bool) -> ReadBoxes:
        read.extend(items.tolist())
        return parse(catalog, storage, items, show=show)

    monkeypatch.setattr(crop_counts, "boxes_of", boxes_of)
    split = split_of(
        [LABEL] * 29, write_xmls(tmp_path, [None, *[annotation(("n02", BOX), ("n02", BOX), ("n02", BOX))] * 28])
    )
    assert count_crops(split) == CropCount(1 + 3 * 28, exact=False)
    assert len(read) <= 10 and len(set(read)) == len(read)


@pytest.mark.parametrize(("xmls", "exact"), [(10, True), (11, False)])
def test_up_to_the_limit_every_xml_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xmls: int, exact: bool
) -> None:
    monkeypatch.setattr(crop_counts, "COUNT_AT_MOST", 10)
    split = split_of([LABEL] * xmls, write_xmls(tmp_path, [annotation(("n02", BOX))] * xmls))
    assert count_crops(split) == CropCount(xmls, exact)


def test_a_world_made_by_hand_counts_everything_itself(tmp_path: Path) -> None:
    split = split_of([LABEL] * len(XMLS), write_xmls(tmp_path, XMLS), World(1, 3))
    assert count_crops(split) == CropCount(11, exact=True)


@pytest.mark.parametrize("text", [annotation(("n02", BOX)).replace("<ymin>25</ymin>", ""), ""], ids=["broken", "empty"])
def test_an_xml_that_cannot_be_used_stops_the_count_by_name(tmp_path: Path, text: str) -> None:
    split = split_of([LABEL] * 3, write_xmls(tmp_path, [annotation(), text, annotation()]))
    with pytest.raises(ConfigError, match=r"1\.xml"):
        count_crops(split)


def test_any_xml_is_counted_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    unusual = annotation(("n02", BOX), ("n02", OTHER_BOX)).replace("<name>", '<name lang="en">')
    split = split_of([LABEL] * 2, write_xmls(tmp_path, [unusual, None]))
    assert count_crops(split) == CropCount(3, exact=True)
    expected, _ = targets_of([("n02", BOX), ("n02", OTHER_BOX)])
    np.testing.assert_allclose(with_boxes(split.catalog, LocalFiles(), World()).boxes.boxes, expected + WHOLE)
    split = split_of([LABEL], write_xmls(tmp_path, [annotation(("n02", ("wide", 1, 2, 3)))]))
    with pytest.raises(ConfigError, match=r'0\.xml: line 1: <bndbox/ymin> is "wide", not a number'):
        count_crops(split)


def test_an_xml_that_has_gone_stops_the_count_by_name(tmp_path: Path) -> None:
    split = split_of([LABEL], ["/nowhere/0.xml"])
    with pytest.raises(ConfigError, match=r"/nowhere/0\.xml"):
        count_crops(split)


def test_weighted_images_without_an_object_give_no_crop(tmp_path: Path) -> None:
    split = split_of([BY_OBJECT] * len(XMLS), write_xmls(tmp_path, XMLS), label_source="object")
    weighted = replace(split, catalog=replace(split.catalog, weights=np.ones(len(XMLS))))
    assert count_crops(weighted) == CropCount(0 + 2 + 0 + 2 + 1 + 1 + 0 + 1, exact=False)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_rest_of_a_test_pass_is_counted_by_rank(size: int) -> None:
    counts = [2, 1, 3, 1, 2, 1, 4]
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    boxes = Boxes(owners, np.tile(np.float32(WHOLE), (len(owners), 1)), np.full(len(owners), LABEL, np.int32))
    catalog = replace(catalog_of([LABEL] * len(counts), split="test"), boxes=boxes)
    for rank in range(size):
        split = FileSplit(data_config(crop="boxes", test_crop="boxes"), catalog, World(rank, size))
        mine = [(image, crop) for image in range(rank, len(counts), size) for crop in range(counts[image])]
        assert own_crops(split) == len(mine)
        for done, crop in enumerate(mine):
            assert crops_left(split, Stream.start(size).moved(rank, Cursor(*crop))) == len(mine) - done
        assert crops_left(split, Stream.start(size).moved(rank, Cursor.after(mine[-1]))) == 0


def test_the_rest_of_a_test_pass_is_not_known_if_it_has_an_xml_of_other_ranks() -> None:
    """Other numbers of ranks deal the rest anew: a rank whose share has no XML may get one."""
    catalog = replace(catalog_of([LABEL] * 4, split="test"), annotated=np.array([True, False, True, False]))
    split = FileSplit(data_config(test_crop="boxes"), catalog, World(1, 2))
    assert crops_left(split, Stream.start(2)) == own_crops(split) == 2
    assert crops_left(split, Stream.start(1).moved(0, Cursor(1, 0)).over(2)) is None


@pytest.mark.parametrize("known", [True, False])
def test_a_share_that_never_gives_a_crop_is_refused(tmp_path: Path, known: bool) -> None:
    texts = [annotation(("n02", BOX)) if number % 2 == 0 else annotation(("cow", BOX)) for number in range(6)]
    split = split_of([BY_OBJECT] * 6, write_xmls(tmp_path, texts), label_source="object", scope="shard")
    if known:
        boxes = with_boxes(split.catalog, LocalFiles(), World()).boxes
        split = replace(split, catalog=replace(split.catalog, boxes=boxes))
    check_share(replace(split, world=World(0, 2)))
    check_share(replace(split, world=World(1, 3)))
    check_share(replace(split, config=data_config(label_source="object"), world=World(1, 2)))
    with pytest.raises(
        ConfigError, match=r'^rank 1: none of its 3 images of train\.txt gives a crop: .* set data\.scope to "global"'
    ):
        check_share(replace(split, world=World(1, 2)))
