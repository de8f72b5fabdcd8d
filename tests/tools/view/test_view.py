"""Pictures of a pipeline: what they show is found in them, pixel by pixel."""

import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.sample import SampleData
from tfpipe import World, build_dataset
from tfpipe.cli import main
from tfpipe.config import load_config
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.tools.view.sheet import (
    INK,
    PAPER,
    Scene,
    Tile,
    class_color,
    draw,
    draw_boxes,
    lay_out,
    place_labels,
    text_width,
)
from tfpipe.tools.view.view import ViewRequest, class_names, find_scenes, tile_of, view


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def test_a_mixed_crop_has_the_names_of_its_classes_with_their_shares() -> None:
    crop, names = np.zeros((8, 8, 3), np.uint8), ("ant", "bee", "cat")
    for label, caption, number in (
        (np.int32(1), ("bee",), 1),
        (np.float32([0, 0.25, 0.75]), ("75% cat", "25% bee"), 2),
        (np.float32([1, 0, 0]), ("ant",), 0),
    ):
        tile = tile_of(crop, np.asarray(label), names)
        assert (tile.caption, tile.color) == (caption, class_color(number))


def place_of(crop: np.ndarray, sheet: np.ndarray) -> tuple[int, int]:
    """Top and left of where exactly these pixels are."""
    height, width, _ = crop.shape
    corners = np.argwhere((sheet[: 1 - height or None, : 1 - width or None] == crop[0, 0]).all(-1)).tolist()
    places = [
        (top, left) for top, left in corners if np.array_equal(sheet[top : top + height, left : left + width], crop)
    ]
    assert places, "these pixels are nowhere"
    return places[0]


@pytest.mark.parametrize(
    ("data", "times"),
    [
        ({"crop_image_size": [24, 40], "num_channels": 1}, 3),
        ({"batch_size": 8, "crop_image_size": [224, 224], "crop": "random_resized", "dtype": "float32"}, 1),
    ],
)
def test_the_crops_of_the_batch_are_in_the_grid_in_their_order(sample: SampleData, tmp_path: Path, data, times) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data=data))
    said = view(config, ViewRequest(count=7, first=3), tmp_path / "grid.png")
    assert said.startswith(f"{tmp_path / 'grid.png'}: 7 crops") and "\n" not in said

    whole = config.model_copy(update={"data": config.data.model_copy(update={"dtype": "uint8"})})
    images, labels = next(iter(build_dataset(whole, "train", resume=Stream.start(1).at([Cursor(3)]))))
    sheet = read(tmp_path / "grid.png")
    places = []
    for image, label in zip(images[:7].numpy(), labels[:7].numpy(), strict=True):
        large = np.repeat(np.repeat(image, times, 0), times, 1)
        top, left = place_of(np.repeat(large, 3 // large.shape[-1], -1), sheet)
        places.append((top, left))
        below = sheet[top + large.shape[0] : top + large.shape[0] + 20, left : left + 9]
        assert (below == class_color(int(label))).all(-1).sum() == 81
    assert places == sorted(places) and len(set(places)) == 7


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_what_a_transform_makes_is_seen(sample: SampleData, tmp_path: Path, dtype: str) -> None:
    """It gets images of the type that training gives it; floats are drawn from their lowest to their highest value."""
    path = sample.config(tmp_path / "c.json", data={"dtype": dtype, "transform": "tests.support.own:centred"})
    view(load_config(path), ViewRequest("batch", "train", 4), tmp_path / "a.png")
    assert np.ptp(np.asarray(Image.open(tmp_path / "a.png").convert("L"))) > 100


def test_the_test_data_can_be_seen_and_ends(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"test_crop": "center", "annotations": "none"}))
    assert "37 crops" in view(config, ViewRequest(split="test"), tmp_path / "a.jpg")
    assert Image.open(tmp_path / "a.jpg").format == "JPEG"
    assert "5 crops" in view(config, ViewRequest(split="test", first=32), tmp_path / "b.JPG")
    with pytest.raises(ConfigError, match="--first: received 37, of 37 images of test data"):
        view(config, ViewRequest(split="test", first=37), tmp_path / "c.png")


@pytest.mark.parametrize("unit", ["image", "box"])
def test_scenes_hold_the_boxes_of_the_xml_and_the_crops_of_the_pipeline(
    sample: SampleData, tmp_path: Path, unit: str
) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"unit": unit}))
    split = load_split(config.data, "train", World())
    scenes = find_scenes(split, Stream.start(1), 24)

    images, labels = next(iter(build_dataset(config, "train").rebatch(24)))
    crops = np.concatenate([scene.crops for scene in scenes])[:24]
    np.testing.assert_array_equal(crops, images)
    np.testing.assert_array_equal(np.concatenate([scene.crop_labels for scene in scenes])[:24], labels)
    assert sum(len(scene.boxes) for scene in scenes) > 5
    for scene in scenes:
        height, width, _ = scene.pixels.shape
        assert (width, height) == Image.open(scene.path).size
        xml = Path(scene.path.replace("Data", "Annotations")).with_suffix(".xml")
        objects = ElementTree.parse(xml).iter("bndbox") if xml.exists() else ()
        stated = [[float(box.find(edge).text) for edge in ("ymin", "xmin", "ymax", "xmax")] for box in objects]
        drawn = scene.boxes * [height, width, height, width]
        if unit == "image":
            np.testing.assert_allclose(drawn.reshape(-1, 4), np.reshape(stated, (-1, 4)), atol=1e-3)
        else:
            assert len(drawn) <= 1 and all(np.abs(np.subtract(stated, box)).sum(1).min() < 1e-2 for box in drawn)


def scene(boxes: list, labels: list, crops: int = 0, windows: list = ()) -> Scene:
    """On a black image that is drawn at twice its size."""
    return Scene(
        "/a/black.JPEG",
        np.zeros((165, 220, 1), np.uint8),
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(labels, np.int32),
        np.array(windows, np.int32).reshape(-1, 4),
        np.full((crops, 64, 64, 1), 99, np.uint8),
        np.array(labels[:crops], np.int32),
        np.arange(crops),
    )


def test_a_box_is_drawn_where_it_is_in_the_colour_of_its_class() -> None:
    drawn = np.asarray(draw_boxes(scene([[0.4, 0.25, 0.8, 0.75]], [5]), ["x"] * 6, numbered=False))
    assert drawn.shape == (330, 440, 3)
    color = class_color(5)
    left, top, right, bottom = 110, 132, 330, 264
    across, down = drawn[200], drawn[:, 300]
    for line, low, high in ((across, left, right), (down, top, bottom)):
        marked = np.flatnonzero((line == color).all(-1))
        assert marked.tolist() == [low, low + 1, high - 2, high - 1]
        assert tuple(line[low - 1]) == tuple(line[high]) == INK
        assert not line[low + 3 : high - 3].any()


def test_what_was_cut_is_drawn_in_white_in_the_image_s_own_pixels() -> None:
    drawn = np.asarray(draw_boxes(scene([], [], windows=[[10, 20, 60, 80]]), [], numbered=False))
    assert np.flatnonzero((drawn[60] == PAPER).all(-1)).tolist() == [40, 41, 198, 199]
    assert np.flatnonzero((drawn[:, 100] == PAPER).all(-1)).tolist() == [20, 21, 138, 139]


def test_labels_lie_inside_and_on_no_other() -> None:
    draws = random.Random(0)
    boxes = []
    for _ in range(60):
        left, top = draws.randrange(400), draws.randrange(300)
        boxes.append((left, top, left + draws.randrange(5, 100), top + draws.randrange(5, 100)))
    texts = [(f"{number} red cell", str(number)) for number in range(60)]
    placed = list(place_labels(boxes, texts, (440, 330)))
    assert len(placed) > 40 and len({number for number, _, _ in placed}) == len(placed)
    assert {text in texts[number] for number, text, _ in placed} == {True}
    assert {text.endswith("cell") for _, text, _ in placed} == {True, False}
    free = np.ones((330, 440), bool)
    for _, text, (left, top, right, bottom) in placed:
        assert 0 <= left and right <= 440 and 0 <= top and bottom <= 330
        assert right - left >= text_width(text)
        assert free[top:bottom, left:right].all()
        free[top:bottom, left:right] = False


def test_tiles_do_not_overlap_and_lie_on_the_sheet() -> None:
    sizes = [(50, 40), (128, 128), (10, 90), (128, 20), (60, 60), (128, 128), (3, 3)]
    tiles = [Tile(Image.new("RGB", size), ["line"] * (number % 3)) for number, size in enumerate(sizes)]
    for some in range(1, len(tiles) + 1):
        grid = lay_out(tiles[:some])
        free = np.ones(draw("", tiles[:some]).size[::-1], bool)
        for number, tile in enumerate(tiles[:some]):
            left, top = grid.corner(number)
            height = tile.picture.height + 17 * len(tile.caption)
            assert free[top : top + height, left : left + grid.width].all()
            assert free[top : top + height, left : left + grid.width].shape == (height, grid.width)
            free[top : top + height, left : left + grid.width] = False


def test_classes_go_by_their_first_name(sample: SampleData, tmp_path: Path) -> None:
    data = load_config(sample.config(tmp_path / "c.json")).data
    catalog = load_split(data, "train", World()).catalog
    # Of the file in the folder above the images.
    assert class_names(data, catalog)[:3] == ("tench", "snail", "ladybug")
    file = tmp_path / "classes.txt"
    file.write_text("\n".join(f"{name} number {name}, and so on" for name in catalog.classes), encoding="utf-8-sig")
    named = data.model_copy(update={"classes": file})
    assert class_names(named, catalog)[0] == f"number {catalog.classes[0]}"


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("no/grid.png", "there is no folder"),
        ("dir.png", "it is a folder"),
    ],
)
def test_what_cannot_be_written_is_told(sample: SampleData, tmp_path: Path, capfd, out: str, said: str) -> None:
    (tmp_path / "dir.png").mkdir()
    config = sample.config(tmp_path / "c.json")
    with pytest.raises(SystemExit) as ended:
        main(["view", "-c", str(config), "-o", str(tmp_path / out), "--count", "2"])
    assert ended.value.code == 2 and f"cannot write {tmp_path / out}: {said}" in capfd.readouterr().err


def test_classes_that_no_object_has_give_no_endless_search(sample: SampleData, tmp_path: Path) -> None:
    data = {"label_source": "object", "classes": ["nothing"], "test_filelist": None, "test_label_file": None}
    config = load_config(sample.config(tmp_path / "c.json", data=data))
    with pytest.raises(ConfigError, match="gives no crop"):
        view(config, ViewRequest(count=1), tmp_path / "a.png")
