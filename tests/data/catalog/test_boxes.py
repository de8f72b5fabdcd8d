"""All boxes at once: how many crops an epoch has, and each box as a sample of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.targets import BOX, LABEL, OTHER_BOX, STATED, WHOLE, catalog_of, data_config, targets_of
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.annotations.voc import read_xml
from tfpipe.data.catalog import boxes as boxes_module
from tfpipe.data.catalog.boxes import CropCount, count_crops, read_boxes
from tfpipe.data.catalog.paths import FileList
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def xml(*objects: tuple[str, Sequence[float]], size: tuple[float, float] | None = STATED) -> str:
    stated = f"<size><height>{size[0]}</height><width>{size[1]}</width></size>" if size else ""
    things = "".join(
        f"<object><name>{name}</name><bndbox><ymin>{y1}</ymin><xmin>{x1}</xmin><ymax>{y2}</ymax><xmax>{x2}</xmax>"
        "</bndbox></object>"
        for name, (y1, x1, y2, x2) in objects
    )
    return f"<annotation>{stated}{things}</annotation>"


@pytest.fixture
def write(tmp_path):
    """Writes XMLs, None for an image without; gives their paths."""

    def write_all(texts: Sequence[str | None]) -> list[str]:
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"{number}.xml"
            if text is not None:
                path.write_text(text)
            paths.append(str(path) if text is not None else "")
        return paths

    return write_all


XMLS = [
    None,
    xml(("n02", BOX), ("n02", OTHER_BOX)),
    xml(),
    xml(("n01", BOX), ("n02", OTHER_BOX), ("cow", BOX)),
    xml(("n01", BOX)),
    xml(("n02", (75, 150, 25, 50)), ("n03", (5, 5, 5, 9)), ("n02", (0, 900, 9, 950))),
    None,
    xml(("n02", BOX), ("cow", BOX), size=(600, 300)),
]


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
def test_an_epochs_crops_are_counted(write, keys, by_object, crops):
    catalog = catalog_of([BY_OBJECT if by_object else LABEL] * len(XMLS), write(XMLS))
    assert count_crops(catalog, data_config(**keys), World()) == CropCount(crops, exact=True)


def test_each_image_is_counted_with_its_own_label(write):
    same = xml(("n01", BOX), ("n01", OTHER_BOX), ("n03", BOX))
    catalog = catalog_of([0, 1, 2, 0, 1, 2], write([same, same, same, None, same, same]))
    assert count_crops(catalog, data_config(), World()) == CropCount(2 + 1 + 1 + 1 + 1 + 1, exact=True)


def test_the_test_split_is_counted_as_it_is_cropped(write):
    catalog = catalog_of([LABEL] * len(XMLS), write(XMLS), split="test")
    config = data_config(crop="random_resized", test_crop="boxes")
    assert count_crops(catalog, config, World()) == CropCount(11, exact=True)
    assert count_crops(catalog, data_config(crop="boxes", test_crop="center"), World()) == CropCount(8, exact=True)


@pytest.mark.parametrize(("label", "crops"), [(LABEL, 3), (BY_OBJECT, 0)])
def test_without_an_xml_an_image_is_one_crop_or_none(label, crops):
    config = data_config(**({"label_source": "object"} if label == BY_OBJECT else {}))
    assert count_crops(catalog_of([label] * 3), config, World()) == CropCount(crops, exact=True)


def test_no_xml_is_read_where_every_image_gives_one_crop():
    catalog = catalog_of([LABEL] * 3, [f"/nowhere/{number}.xml" for number in range(3)])
    for crop in ("center", "full", "random_resized"):
        assert count_crops(catalog, data_config(crop=crop), World()) == CropCount(3, exact=True)


def test_more_xmls_than_are_read_are_estimated_from_all_over_the_list(write, monkeypatch):
    monkeypatch.setattr(boxes_module, "COUNT_AT_MOST", 10)
    one, four = xml(("n02", BOX)), xml(*[("n02", BOX)] * 4)
    # Sorted as by class: the first half has one object each, the second four.
    catalog = catalog_of([LABEL] * 66, write([one, None, one] * 11 + [four, None, four] * 11))
    count = count_crops(catalog, data_config(), World())
    true = 22 + 22 + 88
    assert not count.exact
    assert abs(count.crops - true) < 0.1 * true


def test_an_estimate_is_made_of_no_more_xmls_than_allowed_and_scales_exactly_where_all_are_alike(write, monkeypatch):
    monkeypatch.setattr(boxes_module, "COUNT_AT_MOST", 10)
    read = []
    parse = boxes_module._read
    monkeypatch.setattr(
        boxes_module, "_read", lambda catalog, chosen, show: read.extend(chosen) or parse(catalog, chosen, show)
    )
    catalog = catalog_of([LABEL] * 29, write([None, *[xml(("n02", BOX), ("n02", BOX), ("n02", BOX))] * 28]))
    assert count_crops(catalog, data_config(), World()) == CropCount(1 + 3 * 28, exact=False)
    assert len(read) <= 10 and len(set(read)) == len(read)


@pytest.mark.parametrize(("xmls", "exact"), [(10, True), (11, False)])
def test_up_to_the_limit_every_xml_is_read(write, monkeypatch, xmls, exact):
    monkeypatch.setattr(boxes_module, "COUNT_AT_MOST", 10)
    catalog = catalog_of([LABEL] * xmls, write([xml(("n02", BOX))] * xmls))
    assert count_crops(catalog, data_config(), World()) == CropCount(xmls, exact)


def test_without_a_stated_size_the_jpegs_own_counts(write, tmp_path):
    """It alone says that the second box is outside of the image."""
    Image.new("RGB", (600, 300)).save(tmp_path / "0.JPEG")
    objects = [("n02", (25, 50, 75, 150)), ("n02", (0, 900, 9, 950))]
    catalog = catalog_of([LABEL], write([xml(*objects, size=None)]))
    catalog = replace(catalog, paths=FileList.of([str(tmp_path / "0.JPEG")]))
    np.testing.assert_allclose(read_boxes(catalog, World()).boxes, targets_of(objects[:1], stated=(300, 600))[0])


@pytest.mark.parametrize(("by_object", "world"), [(False, World()), (True, World(2, 3))])
def test_all_boxes_are_the_targets_of_all_images(write, by_object, world):
    """A world made by hand cannot reach the other ranks: it reads everything itself."""
    catalog = catalog_of([BY_OBJECT if by_object else LABEL] * len(XMLS), write(XMLS))
    found = read_boxes(catalog, world)
    assert (found.images.dtype, found.boxes.dtype, found.labels.dtype) == (np.int32, np.float32, np.int32)
    assert (np.diff(found.images) >= 0).all()
    for image, text in enumerate(XMLS):
        mine = found.images == image
        if text is None:
            assert found.boxes[mine].tolist() == ([] if by_object else WHOLE)
            continue
        objects = read_xml(catalog.annotation(image))
        things = list(zip(objects.names, objects.boxes.tolist(), strict=True))
        boxes, labels = targets_of(things, by_object, stated=tuple(objects.size))
        np.testing.assert_allclose(found.boxes[mine], np.reshape(boxes, (-1, 4)))
        assert found.labels[mine].tolist() == labels


def test_a_world_made_by_hand_counts_everything_itself(write):
    catalog = catalog_of([LABEL] * len(XMLS), write(XMLS))
    assert count_crops(catalog, data_config(), World(1, 3)) == CropCount(11, exact=True)


def test_an_xml_that_cannot_be_used_stops_the_count_by_name(write):
    broken = xml(("n02", BOX)).replace("<ymin>25</ymin>", "")
    catalog = catalog_of([LABEL] * 3, write([xml(), broken, xml()]))
    with pytest.raises(ConfigError, match=r"1\.xml"):
        count_crops(catalog, data_config(), World())


def test_any_xml_is_counted_and_one_that_is_none_is_named(write):
    unusual = xml(("n02", BOX), ("n02", OTHER_BOX)).replace("<name>", '<name lang="en">')
    catalog = catalog_of([LABEL] * 2, write([unusual, None]))
    assert count_crops(catalog, data_config(), World()) == CropCount(3, exact=True)
    expected, _ = targets_of([("n02", BOX), ("n02", OTHER_BOX)])
    np.testing.assert_allclose(read_boxes(catalog, World()).boxes, expected + WHOLE)
    catalog = catalog_of([LABEL], write([xml(("n02", ("wide", 1, 2, 3)))]))
    with pytest.raises(ConfigError, match=r'0\.xml: line 1: <bndbox/ymin> is "wide", not a number'):
        count_crops(catalog, data_config(), World())


def test_an_xml_that_is_empty_stops_the_count_by_name(write):
    catalog = catalog_of([LABEL] * 3, write([xml(), "", xml()]))
    with pytest.raises(ConfigError, match=r"1\.xml"):
        count_crops(catalog, data_config(), World())


def test_an_xml_that_has_gone_stops_the_count_by_name(write):
    catalog = catalog_of([LABEL], ["/nowhere/0.xml"])
    with pytest.raises(ConfigError, match=r"/nowhere/0\.xml"):
        count_crops(catalog, data_config(), World())


@pytest.mark.parametrize("known", [True, False])
def test_a_share_that_never_gives_a_crop_is_refused(write, known: bool) -> None:
    texts = [xml(("n02", BOX)) if number % 2 == 0 else xml(("cow", BOX)) for number in range(6)]
    catalog = catalog_of([BY_OBJECT] * 6, write(texts))
    if known:
        catalog = replace(catalog, boxes=read_boxes(catalog, World()))
    config = data_config(label_source="object", scope="shard")
    boxes_module.check_share(catalog, config, World(0, 2))
    boxes_module.check_share(catalog, config, World(1, 3))
    boxes_module.check_share(catalog, data_config(label_source="object"), World(1, 2))
    with pytest.raises(ConfigError, match=r'^rank 1: none of its 3 images .* set data\.scope to "global"'):
        boxes_module.check_share(catalog, config, World(1, 2))


class OneOf(World):
    """A rank whose reading is collected instead of shared."""

    def gather(self, value: Any) -> list[Any]:
        PARTS.append(value.result)
        return [value]


PARTS: list[Any] = []


def test_the_ranks_divide_the_reading(write) -> None:
    catalog = catalog_of([LABEL] * len(XMLS), write(XMLS))
    PARTS.clear()
    for rank in range(3):
        read_boxes(catalog, OneOf(rank, 3, "mpi"))
    of_ranks = [sorted(set(part.images.tolist())) for part in PARTS]
    assert of_ranks == [np.flatnonzero(catalog.annotated)[rank::3].tolist() for rank in range(3)]
