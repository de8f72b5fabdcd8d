"""Labels that are more than one class: equal for all kinds of data, right by the pixels, exact on resume."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.support.batches import elements
from tests.support.packs import packed
from tests.support.scenes import CLASSES, Scene, make_scenes
from tests.support.server import serving
from tests.support.targets import catalog_of, data_config
from tfpipe import Cursor, Loader, World, make_config
from tfpipe.cli import main
from tfpipe.config.targets import KINDS
from tfpipe.data.annotations.cleaning import Boxes
from tfpipe.data.pipeline import build_batches
from tfpipe.data.sources.files import FileSplit
from tfpipe.data.targets.labels import TARGETS, choose_targets
from tfpipe.errors import ConfigError

RANDOM = {"crop": "random_resized", "random_resized": {"area": [0.3, 1]}, "flip": True}
SIDES = (64, 48)
# Shape, after the batch, and type of what comes with a crop, by the kind of data.targets.
FORMS = {
    "label": ((), np.int32),
    "labels": ((3,), np.float32),
    "number": ((), np.float32),
    "boxes": ((3, 4), np.float32),
    "mask": (SIDES, np.uint8),
    "none": None,
}
TABLE = {"id": "id", "years": "age", "caption": "caption", "place": "place"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    make_scenes(root)
    return root


@pytest.fixture(scope="module")
def scenes(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    return make_scenes(tmp_path_factory.mktemp("again"))


def config_of(root: Path, form: str = "list", **data: Any) -> tfpipe.Config:
    """The scenes as `form` tells of them."""
    columns = data.pop("columns", {})
    forms: dict[str, dict[str, Any]] = {
        "list": {"train_filelist": str(root / "train.txt"), "classes": list(CLASSES)},
        "table": {"source": {"kind": "table", "path": str(root / "train.jsonl"), "columns": columns}},
        "coco": {"source": {"kind": "coco", "path": str(root / "train.json"), "images": str(root)}},
        "tar": {"source": {"kind": "webdataset", "path": str(root / "tars"), "columns": columns}},
        "packed": {"source": {"kind": "packed", "path": str(root / "packed")}},
        "coefficients": {"source": {"kind": "packed", "path": str(root / "coefficients")}},
    }
    settings = {"crop_image_size": list(SIDES), "batch_size": 8, "seed": 5, "classes": list(CLASSES)}
    return make_config({"data": settings | forms[form] | data})


def first(config: tfpipe.Config, count: int = 3, **how: Any) -> list[Any]:
    """The first batches, by their parts' names."""
    return [batch for _, batch in zip(range(count), elements(build_batches(config, **how)), strict=False)]


def assert_equal(some: Any, others: Any) -> None:
    some, others = (np.array(each, object) if isinstance(each, list) else each for each in (some, others))
    if isinstance(some, dict):
        assert some.keys() == others.keys()
        for name, part in some.items():
            assert np.array_equal(part, others[name]), name
    else:
        assert np.array_equal(some, others)


@pytest.mark.parametrize("form", ["table", "coco", "tar", "packed", "coefficients"])
@pytest.mark.parametrize("kind", ["boxes", "labels"])
def test_every_kind_of_data_gives_the_same(root: Path, form: str, kind: str) -> None:
    listed = config_of(root, targets=kind, **RANDOM)
    if form in ("packed", "coefficients") and not (root / form).exists():
        packed(listed, root / form, "original" if form == "packed" else form, shards=2, splits=("train",))
    other = config_of(root, form, targets=kind, **RANDOM)
    for batch, again in zip(first(listed), first(other), strict=True):
        assert np.array_equal(batch.data[0], again.data[0])
        assert_equal(batch.data[1], again.data[1])


def test_boxes_are_where_the_colours_are(root: Path) -> None:
    """Each box frames pixels of its class's colour, and outside of all boxes there are none."""
    config = config_of(root, targets={"kind": "boxes", "min_visible": 0}, resize="area", **RANDOM)
    seen = 0
    for batch in first(config, 12):
        images, labels = batch.data
        for image, boxes, classes in zip(images, labels["boxes"], labels["labels"], strict=True):
            coloured = image.max(axis=2) > 128
            for box, label in zip(boxes[classes >= 0], classes[classes >= 0], strict=True):
                left, top, right, bottom = box
                rows = slice(int(np.ceil(top + 1)), int(bottom - 1))
                columns = slice(int(np.ceil(left + 1)), int(right - 1))
                inside = image[rows, columns]
                if inside.size:
                    seen += 1
                    assert (inside.argmax(axis=2) == label).all() and (inside.max(axis=2) > 200).all()
                coloured[max(0, int(top) - 1) : int(bottom) + 2, max(0, int(left) - 1) : int(right) + 2] = False
            assert not coloured.any()
            assert (boxes[classes < 0] == -1).all()
    assert seen > 50


def test_masks_are_where_the_colours_are(root: Path) -> None:
    layout = {"images": "JPEGImages", "annotations": "Masks"}
    config = config_of(root, targets={"kind": "mask", "masks": layout}, **RANDOM)
    others = [first(config_of(root, form, targets="mask", **RANDOM), 6) for form in ("table", "tar")]
    agree = []
    for batch, *again in zip(first(config, 6), *others, strict=True):
        images, masks = batch.data
        assert masks.dtype == np.uint8 and masks.shape == (8, *SIDES)
        for other in again:
            assert np.array_equal(images, other.data[0]) and np.array_equal(masks, other.data[1])
        strong = images.max(axis=3)
        agree.append(((strong > 128) == (masks > 0)).mean())
        sure = (strong > 200) & (masks > 0)
        agree.append((images.argmax(axis=3)[sure] == masks[sure] - 1).mean())
    assert min(agree) > 0.97


@pytest.mark.parametrize("form", ["table", "tar"])
def test_columns_come_with_their_image(root: Path, scenes: list[Scene], form: str) -> None:
    columns = {"extra": TABLE | ({"years": "about.age"} if form == "tar" else {})}
    config = config_of(root, form, targets="labels", columns=columns, batch_size=4)
    for batch in first(config, 4):
        labels = batch.data[1]
        assert labels.keys() == {"labels", *TABLE}
        for row, number in enumerate(labels["id"] - 1000):
            scene = scenes[number]
            assert labels["years"][row] == number / 2 and labels["place"][row].tolist() == [number, -number]
            assert labels["caption"][row].decode().endswith(f"rectangles\nof {scene.name}, à la carte")
            assert set(np.flatnonzero(labels["labels"][row])) == set(scene.labels)


@pytest.mark.parametrize("form", ["table", "tar"])
def test_labels_of_a_list_are_those_of_the_boxes(root: Path, form: str) -> None:
    boxes = config_of(root, form, targets="labels")
    tags = config_of(
        root, form, targets="labels", columns={"label": "tags", "boxes": "none"} if form == "tar" else {"label": "tags"}
    )
    assert_equal([batch.data[1] for batch in first(boxes)], [batch.data[1] for batch in first(tags)])


@pytest.mark.parametrize(("column", "shape"), [("age", (8,)), ("place", (8, 2)), ("id", (8,))])
def test_numbers_are_floats(root: Path, column: str, shape: tuple[int, ...]) -> None:
    config = config_of(root, "table", targets="number", columns={"label": column}, classes=None, crop="full")
    (images, numbers), *_ = (batch.data for batch in first(config, 1))
    assert numbers.dtype == np.float32 and numbers.shape == shape and images.shape == (8, *SIDES, 3)


def test_mixed_labels_share_both_images_classes(root: Path) -> None:
    plain = config_of(root, targets="labels")
    mixed = config_of(root, targets="labels", mix={"mixup": 0.4})
    for batch, other in zip(first(plain), first(mixed), strict=True):
        labels, shares = batch.data[1], other.data[1]
        partners = np.roll(labels, 1, 0)
        own = shares[(labels == 1) & (partners == 0)]
        assert np.allclose(own, own[0], atol=1e-6) and 0 <= own[0] <= 1
        assert np.allclose(shares, own[0] * labels + (1 - own[0]) * partners, atol=1e-6)


def test_boxes_and_masks_are_where_a_letterbox_puts_them(root: Path) -> None:
    boxed = config_of(root, targets={"kind": "boxes", "min_visible": 0}, fit="letterbox", flip=True)
    masked = config_of(root, "table", targets="mask", fit="letterbox", flip=True)
    for batch, other in zip(first(boxed, 3), first(masked, 3), strict=True):
        assert np.array_equal(batch.data[0], other.data[0])
        labels, masks = batch.data[1], other.data[1]
        for image, mask, boxes, classes in zip(batch.data[0], masks, labels["boxes"], labels["labels"], strict=True):
            assert (image[mask == 255] == 114).all() and (mask == 255).any()
            for box, label in zip(boxes[classes >= 0], classes[classes >= 0], strict=True):
                left, top, right, bottom = np.round(box).astype(int).tolist()
                assert (mask[top + 1 : bottom - 1, left + 1 : right - 1] == label + 1).all()
            assert set(np.unique(mask)) - {0, 255} == {label + 1 for label in classes[classes >= 0].tolist()}


def test_views_of_an_image_share_its_labels(root: Path) -> None:
    plain = config_of(root, "table", targets="labels", columns={"extra": ["id"]})
    views = config_of(root, "table", targets="labels", columns={"extra": ["id"]}, views=[{"count": 2, "size": 32}])
    for batch, other in zip(first(plain, 2), first(views, 2), strict=True):
        assert [view.shape for view in other.data[0]] == [(8, 32, 32, 3)] * 2
        assert_equal(batch.data[1], other.data[1])
    with pytest.raises(ConfigError, match=r'targets.kind "boxes" and data.views .*: the targets are of one'):
        config_of(root, targets="boxes", views=[{"count": 2}])


def test_ragged_boxes_are_the_padded_ones(root: Path) -> None:
    padded, ragged = (config_of(root, targets={"kind": "boxes", "max_boxes": most}) for most in (None, "ragged"))
    with Loader(padded) as one, Loader(ragged) as other:
        for _ in range(3):
            (_, full), (_, rows) = next(one), next(other)
            for name in ("boxes", "labels"):
                expected = [
                    part[labels >= 0] for part, labels in zip(full[name].numpy(), full["labels"].numpy(), strict=True)
                ]
                got = [part.numpy() for part in rows[name]]
                assert all(np.array_equal(*pair) for pair in zip(expected, got, strict=True))


def test_relative_boxes_are_shares_of_the_crop(root: Path) -> None:
    pixels = config_of(root, targets="boxes", **RANDOM)
    relative = config_of(root, targets={"kind": "boxes", "box_unit": "relative", "max_boxes": 7}, **RANDOM)
    height, width = SIDES
    for batch, other in zip(first(pixels), first(relative), strict=True):
        boxes, shares = batch.data[1]["boxes"], other.data[1]["boxes"]
        there = batch.data[1]["labels"] >= 0
        assert shares.shape == (8, 7, 4) and (shares[:, boxes.shape[1] :] == -1).all()
        expected = boxes[there] / [width, height, width, height]
        assert np.allclose(shares[:, : boxes.shape[1]][there], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("form", "kind"), [("table", "boxes"), ("table", "labels"), ("tar", "mask"), ("table", "number")]
)
def test_a_resume_on_other_ranks_continues_exactly(root: Path, form: str, kind: str) -> None:
    columns = {"extra": TABLE, "label": "age" if kind == "number" else "label"}
    config = config_of(root, form, targets=kind, columns=columns, batch_size=4, **RANDOM)
    whole = {}
    for batch in first(config, 18):
        for row, (position, _) in enumerate(batch.positions):
            whole[int(position)] = (batch.data[0][row], {name: part[row] for name, part in batch.data[1].items()})
    loaders = [Loader(config, world=World(rank, 3), named=True, gather=lambda _: []) for rank in range(3)]
    ends = []
    for loader in loaders:
        used = [next(loader) for _ in range(2)]
        ends.append(Cursor(*(used[-1].positions.numpy()[-1] + [0, 1]).tolist()))
        loader.close()
    stream = tfpipe.Stream.start(3).at(ends)
    seen = 0
    for rank in range(2):
        for batch in first(config, 3, world=World(rank, 2), resume=stream.over(2)):
            for row, (position, _) in enumerate(batch.positions):
                if int(position) in whole:
                    image, labels = whole[int(position)]
                    seen += 1
                    assert np.array_equal(image, batch.data[0][row])
                    assert all(np.array_equal(labels[name], part[row]) for name, part in batch.data[1].items())
    assert seen > 12


def test_every_kind_is_tested() -> None:
    assert FORMS.keys() == TARGETS.keys() == {*KINDS}


@pytest.mark.parametrize("kind", FORMS)
def test_a_kind_has_its_form_and_a_cache_of_files_changes_nothing(root: Path, kind: str, tmp_path: Path) -> None:
    columns = {"label": {"number": "age", "label": "path"}.get(kind, "label")}
    keys = {"targets": kind, "columns": columns, "classes": None if kind == "label" else [*CLASSES]}
    for cache in ("memory", str(tmp_path)):
        plain, cached = config_of(root, "table", **keys), config_of(root, "table", cache=cache, **keys)
        for batch, other in zip(first(plain, 7), first(cached, 7), strict=True):
            assert len(batch.data) == (1 if kind == "none" else 2)
            assert_equal(batch.data[-1], other.data[-1])
            if kind == "none":
                continue
            labels = batch.data[1][kind] if isinstance(batch.data[1], dict) else batch.data[1]
            assert (labels.shape[1:], labels.dtype) == FORMS[kind]


def test_images_without_classes_are_found_in_every_form(root: Path, tmp_path: Path) -> None:
    """At any depth, and with `data.columns.extra` of a table, which are all that comes with them."""
    files = sorted((root / "JPEGImages").iterdir())[:6]
    places = [tmp_path / "photos" / deep / path.name for path, deep in zip(files, ["", "a", "a/b"] * 2, strict=True)]
    for path, place in zip(files, places, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    (tmp_path / "list.txt").write_text("".join(f"{place}\n" for place in places))
    keys = {"targets": "none", "batch_size": 6, "crop_image_size": list(SIDES), "shuffle_buffer": 0}
    found = {}
    for form in ("photos", "photos.zip", "list.txt"):
        with tfpipe.load(str(tmp_path / form), **keys) as loader:
            (images,) = next(loader)
            names = [Path(path).name for path in loader.catalog.paths]
            assert loader.class_names == []
            found[form] = dict(zip(names, images.numpy(), strict=True))
    assert [*found["list.txt"]] == [path.name for path in files]
    for other in found.values():
        assert_equal(found["list.txt"], other)
    table = config_of(root, "table", targets="none", columns={"extra": ["id"]}, classes=None)
    (images, further), *_ = (batch.data for batch in first(table, 1))
    assert further.keys() == {"id"} and images.shape == (8, *SIDES, 3)


@pytest.mark.parametrize("kind", ["boxes", "labels"])
def test_workers_give_the_same(root: Path, kind: str) -> None:
    own, served = (config_of(root, targets=kind, service=service, **RANDOM) for service in (None, 1))
    for batch, other in zip(first(own, 4), first(served, 4), strict=True):
        assert np.array_equal(batch.data[0], other.data[0])
        assert_equal(batch.data[1], other.data[1])


def test_an_image_may_have_as_many_boxes_as_max_boxes_says() -> None:
    boxes = Boxes(np.int32([0, 2, 2]), np.zeros((3, 4), np.float32), np.zeros(3, np.int32))
    objects = {"label_source": "object"}
    split = FileSplit(data_config(**objects, targets={"kind": "boxes", "max_boxes": 2}), catalog_of([0] * 3), World())
    split = replace(split, catalog=replace(split.catalog, boxes=boxes))
    assert choose_targets(split) is not None
    fewer = replace(split, config=data_config(**objects, targets={"kind": "boxes", "max_boxes": 1}))
    with pytest.raises(ConfigError, match=r"max_boxes: received 1, and /x/2\.JPEG of the train data has 2 boxes"):
        choose_targets(fewer)


@pytest.mark.parametrize("form", ["packed", "raw"])
def test_what_is_not_packed_is_refused(root: Path, form: str, tmp_path: Path) -> None:
    kind = "original" if form == "packed" else "raw"
    columns = {"extra": ["id"]}
    for data, problem in (
        ({"targets": "mask"}, 'hold no targets "mask"'),
        ({"columns": columns}, "packed data hold no columns"),
        *([({"targets": "boxes"}, 'packed crops hold no targets "boxes"')] if form == "raw" else []),
    ):
        with pytest.raises(ConfigError, match=re.escape(problem)):
            packed(config_of(root, "table", **data), tmp_path, kind, splits=("train",))


def test_a_run_with_other_targets_is_no_continuation(root: Path) -> None:
    with Loader(config_of(root, "table", targets="boxes", columns={"extra": ["id"]})) as loader:
        next(loader)
        state = loader.state_dict()
    for data, problem in (
        ({"targets": {"kind": "boxes", "min_visible": 0.5}, "columns": {"extra": ["id"]}}, "data.targets"),
        ({"targets": "boxes", "columns": {"extra": ["age"]}}, "further columns"),
    ):
        with pytest.raises(ConfigError, match=re.escape(problem)):
            Loader(config_of(root, "table", **data)).load_state_dict(state)


def test_a_bad_mask_is_named(root: Path, tmp_path: Path) -> None:
    make_scenes(tmp_path / "own", 8)
    bad = tmp_path / "own/Masks/003.png"
    layout = {"images": "JPEGImages", "annotations": "Masks"}
    config = config_of(tmp_path / "own", targets={"kind": "mask", "masks": layout})
    bad.write_bytes(bad.read_bytes()[:60])
    damaged = re.escape(f"{bad} of the train data: it is damaged")
    with Loader(config) as loader, pytest.raises(tfpipe.TfpipeError, match=damaged):
        next(loader)
    bad.unlink()
    with Loader(config) as loader, pytest.raises(tfpipe.TfpipeError, match=re.escape(str(bad))):
        next(loader)


def test_masks_of_tar_shards_behind_urls_are_the_same(root: Path, tmp_path: Path) -> None:
    with serving(root / "tars") as server:
        server.ranges = True
        source = {"kind": "webdataset", "path": f"{server.url}/train-{{0..2}}.tar"}
        remote = first(config_of(root, "tar", targets="mask", source=source, index=str(tmp_path), **RANDOM))
    for batch, other in zip(first(config_of(root, "tar", targets="mask", **RANDOM)), remote, strict=True):
        assert np.array_equal(batch.data[0], other.data[0]) and np.array_equal(batch.data[1], other.data[1])


def test_a_text_with_a_nul_is_refused(tmp_path: Path) -> None:
    """In the graph it would become a line end."""
    make_scenes(tmp_path, 3)
    table = tmp_path / "train.jsonl"
    table.write_text(table.read_text().replace(" rectangles", "\\u0000rectangles", 1))
    with pytest.raises(ConfigError, match="with the character NUL: take it out"):
        Loader(config_of(tmp_path, "table", targets="labels", columns={"extra": ["caption"]}))


def test_a_bad_mask_of_a_tar_shard_is_named(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = make_scenes(tmp_path, 6)
    config = config_of(tmp_path, "tar", targets="mask")
    shard, mask = tmp_path / "tars/train-1.tar", (tmp_path / f"Masks/{scenes[3].name}.png").read_bytes()
    contents = shard.read_bytes()
    shard.write_bytes(contents.replace(mask, mask[:-40] + bytes(40)))
    with (
        Loader(config) as loader,
        pytest.raises(tfpipe.TfpipeError, match=re.escape("003.mask.png of the train data: ")),
    ):
        next(loader)
    written = tmp_path / "config.json"
    written.write_text(json.dumps({"data": config.data.model_dump(mode="json", exclude_unset=True)}))
    assert main(["check", "-c", str(written)]) == 1
    assert "003.mask.png: it is damaged" in capsys.readouterr().out
    shard.write_bytes(contents.replace(b"003.mask.png", b"003.masc.png"))
    with pytest.raises(ConfigError, match=re.escape("train-1.tar")):
        Loader(config)


@pytest.mark.parametrize(
    ("form", "data", "problem"),
    [
        (
            "list",
            {"targets": "box"},
            "received \"box\"; accepted: 'label', 'labels', 'number', 'boxes', 'mask' or 'none'",
        ),
        ("list", {"targets": "number", "classes": None}, 'data.targets "number": '),
        ("list", {"targets": {"kind": "boxes", "max_boxes": 2}}, "received 2, and "),
        ("list", {"targets": "labels", "class_weights": "balanced"}, "have no class of their own"),
        ("table", {"columns": {"extra": ["ages"]}}, 'has no column "ages", but '),
        ("tar", {"columns": {"extra": ["ages"]}}, 'no image has the key "ages" in its .json'),
        ("tar", {"columns": {"extra": ["tags"]}}, 'as "tags", a column of data.source.columns.extra; accepted: '),
        ("tar", {"targets": "mask", "columns": {"mask": "seg"}}, "24 of 24 images have no mask, e.g. "),
        ("table", {"columns": {"extra": ["tags"]}}, 'in the column "tags"; accepted: '),
        (
            "table",
            {"targets": "number", "columns": {"label": "caption"}},
            'in the column "caption"; accepted: a number',
        ),
        ("table", {"targets": "mask", "columns": {"mask": "segments"}}, 'has no column "segments"'),
    ],
)
def test_what_contradicts_is_refused(root: Path, form: str, data: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        next(Loader(config_of(root, form, **json.loads(json.dumps(data)))))
