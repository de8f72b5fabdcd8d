"""Images that EXIF turns, in every source: with `data.exif` "apply" their pixels, sizes, boxes and masks are turned."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from tests.support.batches import crops, elements
from tests.support.images import encoded, picture, turned
from tests.support.routes import HEIGHT, SMALL, WIDTH, Sample, samples
from tests.support.sources import WRITERS, write_source
from tfpipe import Loader, World, build_dataset
from tfpipe.config import make_config
from tfpipe.errors import ConfigError
from tfpipe.native import core
from tfpipe.prepare.index import build_index

# Between a crop that is turned and one of turned pixels, which are resized in another order; and of a JPEG of it.
LEVELS = {"crops": 6}


def pairs() -> tuple[list[Sample], list[Sample]]:
    """The same pictures twice: as cameras write them, by all orientations, and turned, as PNGs. All show 24 x 32."""
    stored, upright = [], []
    for number, sample in enumerate(samples(24)):
        orientation = 1 + number % 8
        sides = (WIDTH, HEIGHT) if orientation > 4 else (HEIGHT, WIDTH)
        file = turned(picture(*sides, number), orientation)
        stored.append(sample._replace(file=file))
        shown = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
        upright.append(sample._replace(file=encoded(shown, format="PNG")))
    return stored, upright


def crops_of(data: dict[str, Any], **keys: Any) -> tuple[list[tuple], np.ndarray]:
    """Positions, numbers and labels of the crops of the first epoch, and their pixels."""
    config = make_config({"data": {**data, "shuffle_buffer": 0, "crop": "boxes", **keys}})
    taken = crops(config, "train", steps=6)
    return [crop[:3] for crop in taken], np.array([np.frombuffer(crop[3], np.uint8) for crop in taken], int)


GATE = ("filelist", "tar", "crops")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in GATE else pytest.mark.full("a kind of source")) for kind in WRITERS]
)
def test_a_turned_image_is_as_the_same_pixels_in_every_source(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # COCO's images have their class by their boxes.
    stored, upright = ([each for each in chosen if each.boxes or kind != "coco"] for chosen in pairs())
    expected = crops_of(write_source(kind, tmp_path / "upright", upright))
    monkeypatch.setitem(SMALL, "exif", "apply")  # that of a pack, too
    found = crops_of(write_source(kind, tmp_path / "stored", stored))
    assert found[0] == expected[0]
    assert np.abs(found[1] - expected[1]).max() <= LEVELS.get(kind, 1)
    assert np.ptp(expected[1]) > 100, "pictures are not of one level"


@pytest.mark.parametrize("how", ["xml", "index", "boxes as samples", "table"])
def test_a_size_that_is_not_stated_is_that_of_the_turned_image(how: str, tmp_path: Path) -> None:
    found = []
    for name, chosen, exif in zip(("stored", "upright"), pairs(), ("apply", "ignore"), strict=True):
        data = {**write_source("parquet" if how == "table" else "filelist", tmp_path / name, chosen), "exif": exif}
        for xml in (tmp_path / name).rglob("*.xml"):
            xml.write_text(re.sub(r"<(width|height)>\d+<", r"<\1>0<", xml.read_text()))
        for path in (tmp_path / name).glob("*.parquet"):
            pq.write_table(pq.read_table(path).drop_columns(["width", "height"]), path)
        keys = {"unit": "box"} if how == "boxes as samples" else {}
        if how == "index":
            keys = {"annotations": "index"}
            build_index(make_config({"data": data}).data, "train", World(), 1)
        found.append(crops_of(data, **keys))
    assert found[0][0] == found[1][0] and np.abs(found[0][1] - found[1][1]).max() <= 1


def test_what_is_stored_of_turned_images_serves_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = pairs()
    data = write_source("filelist", tmp_path / "files", stored)
    build_index(make_config({"data": {**data, "exif": "apply"}}).data, "train", World(), 1)
    with pytest.raises(ConfigError, match=r"the index .* is of another .*data\.exif"):
        crops_of({**data, "annotations": "index"})
    monkeypatch.setitem(SMALL, "exif", "apply")
    packed = write_source("packed", tmp_path / "packed", stored)
    with pytest.raises(ConfigError, match=r'data\.exif: "apply" packed, "ignore" in the config'):
        crops_of({**packed, "exif": "ignore"})


@pytest.mark.parametrize("exif", [None, "ignore", "apply"])
def test_only_a_config_that_does_not_say_warns_of_turned_images_and_once(
    exif: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored, upright = pairs()
    for name, chosen in (("stored", stored), ("upright", upright)):
        chosen = [sample for number, sample in enumerate(chosen) if number % 8 < 4]  # the size stated is both's
        data = write_source("filelist", tmp_path / name, chosen) | ({} if exif is None else {"exif": exif})
        core().pop_unturned()  # forgets those of other tests
        caplog.clear()
        with Loader(make_config({"data": data})) as loader:
            for _ in range(6):
                next(loader)
        warned = [line for line in caplog.messages if "EXIF turns some" in line]
        assert len(warned) == (name == "stored" and exif is None)


def test_a_mask_is_of_the_turned_image(tmp_path: Path) -> None:
    stored, upright = pairs()
    taken = []
    for name, chosen, exif in (("stored", stored, "apply"), ("upright", upright, "ignore")):
        data = write_source("filelist", tmp_path / name, chosen)
        for number, sample in enumerate(chosen):
            classes = np.random.default_rng(number).integers(0, 9, (HEIGHT, WIDTH), np.uint8)
            path = tmp_path / name / "xmls" / sample.label / f"{sample.name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(classes).save(path)
        masks = {"kind": "mask", "masks": data["layout"]}
        keys = {"targets": masks, "shuffle_buffer": 0, "crop": "random_resized", "exif": exif}
        taken.append([labels for _, labels in elements(build_dataset(make_config({"data": data | keys})).take(6))])
    for mask, expected in zip(*taken, strict=True):
        assert (mask == expected).all() and np.ptp(mask) > 0
    with pytest.raises(Exception, match=r"it has 24 x 32 pixels, and its image 32 x 24"):
        keys = {"targets": masks, "shuffle_buffer": 0, "crop": "full"}
        data = write_source("filelist", tmp_path / "stored", stored)
        list(elements(build_dataset(make_config({"data": data | keys})).take(6)))
