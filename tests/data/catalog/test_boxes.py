"""All boxes at once: those of all images, and who reads them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.annotations import read_annotation
from tests.support.targets import BOX, LABEL, WHOLE, XMLS, annotation, catalog_of, targets_of, write_xmls
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.catalog.layout import LocalFiles
from tfpipe.data.catalog.paths import FileList
from tfpipe.distributed import World


def test_without_a_stated_size_the_jpegs_own_counts(tmp_path: Path) -> None:
    """It alone says that the second box is outside of the image."""
    Image.new("RGB", (600, 300)).save(tmp_path / "0.JPEG")
    objects = [("n02", (25, 50, 75, 150)), ("n02", (0, 900, 9, 950))]
    catalog = catalog_of([LABEL], write_xmls(tmp_path, [annotation(*objects, size=None)]))
    catalog = replace(catalog, paths=FileList.of([str(tmp_path / "0.JPEG")]))
    np.testing.assert_allclose(
        with_boxes(catalog, LocalFiles(), World()).boxes.boxes, targets_of(objects[:1], stated=(300, 600))[0]
    )


@pytest.mark.parametrize(("by_object", "world"), [(False, World()), (True, World(2, 3))])
def test_all_boxes_are_the_targets_of_all_images(tmp_path: Path, by_object: bool, world: World) -> None:
    """A world made by hand cannot reach the other ranks: it reads everything itself."""
    catalog = catalog_of([BY_OBJECT if by_object else LABEL] * len(XMLS), write_xmls(tmp_path, XMLS))
    found = with_boxes(catalog, LocalFiles(), world).boxes
    assert (found.images.dtype, found.boxes.dtype, found.labels.dtype) == (np.int32, np.float32, np.int32)
    assert (np.diff(found.images) >= 0).all()
    for image, text in enumerate(XMLS):
        mine = found.images == image
        if text is None:
            assert found.boxes[mine].tolist() == ([] if by_object else WHOLE)
            continue
        objects = read_annotation(catalog.annotation(image))
        things = list(zip(objects.names, objects.boxes.tolist(), strict=True))
        boxes, labels = targets_of(things, by_object, stated=tuple(objects.size))
        np.testing.assert_allclose(found.boxes[mine], np.reshape(boxes, (-1, 4)))
        assert found.labels[mine].tolist() == labels


@pytest.mark.parametrize("by_object", [False, True])
def test_objects_that_are_left_out_are_counted_by_reason(tmp_path: Path, by_object: bool) -> None:
    objects = [("N02", BOX), ("n02", BOX), ("n02", (5, 5, 5, 9)), ("n03", BOX)]
    paths = write_xmls(tmp_path, [None, annotation(("cow", BOX)), annotation(*objects)])
    catalog = with_boxes(catalog_of([BY_OBJECT if by_object else LABEL] * 3, paths), LocalFiles(), World())
    assert catalog.ledger.counts == {
        "boxes without an area": (1, f'"n02" in {paths[2]}'),
        **(
            {"objects of an unknown class": (2, f'"cow" in {paths[1]}')}
            if by_object
            else {"objects of another class than their image's": (1, f'"n03" in {paths[2]}')}
        ),
    }


class OneOf(World):
    """A rank whose reading is collected instead of shared."""

    def gather(self, value: Any) -> list[Any]:
        PARTS.append(value.result.boxes)
        return [value]


PARTS: list[Any] = []


def test_the_ranks_divide_the_reading(tmp_path: Path) -> None:
    catalog = catalog_of([LABEL] * len(XMLS), write_xmls(tmp_path, XMLS))
    PARTS.clear()
    for rank in range(3):
        with_boxes(catalog, LocalFiles(), OneOf(rank, 3, "mpi"))
    of_ranks = [sorted(set(part.images.tolist())) for part in PARTS]
    assert of_ranks == [np.flatnonzero(catalog.annotated)[rank::3].tolist() for rank in range(3)]
