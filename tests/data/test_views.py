"""Several views of each image: what pipelines of one view each give, from every source, to every consumer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tfpipe.torch
from tests.support.batches import assert_same, batches
from tests.support.images import cmyk, encoded, of_jfif_2, picture
from tests.support.packs import config_of, packed
from tests.support.sample import SampleData
from tfpipe import Config, Loader, World, make_config
from tfpipe.config.data import unused_settings
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.images.windows import letterbox_windows
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare.pack import PackPlan, pack
from tfpipe.tools.view.view import ViewRequest, view
from tfpipe.training.loop import load_run

STEPS = ["RandAugment", {"name": "GaussianBlur", "kernel_size": 5}]
VIEWS: list[dict[str, Any]] = [
    {"count": 2, "size": [40, 32], "random_resized": {"area": [0.4, 1]}, "augment": STEPS},
    {"count": 2, "size": 24, "random_resized": {"area": [0.05, 0.4]}, "flip": False, "augment": ["RandomInvert"]},
    {"size": [20, 48], "crop": "full", "flip": True},
    {"crop": "center"},
]
SIZES = [(40, 32), (40, 32), (24, 24), (24, 24), (20, 48), (32, 32)]
KEYS = {"crop": "random_resized", "seed": 7, "augment": [{"name": "RandomSolarize", "threshold": 99}]}


def files_of_many_kinds(folder: Path) -> Path:
    """Writes a filelist of images that the decoder in C takes, and of others."""
    images = [picture(90 + number, 120 - number, number) for number in range(6)]
    files = {
        "420": encoded(images[0]),
        "444": encoded(images[1], subsampling=0),
        "progressive": encoded(images[2], progressive=True),
        "restarts": encoded(images[3], restart_marker_rows=1),
        "gray": encoded(images[4].convert("L")),
        "jfif2": of_jfif_2(encoded(images[5])),
        "cmyk": cmyk(images[0]),
        "png": encoded(images[1], format="PNG"),
    }
    (folder / "a").mkdir()
    for name, contents in files.items():
        (folder / "a" / f"{name}.jpg").write_bytes(contents)
    (folder / "list.txt").write_text("".join(f"a/{name}.jpg\n" for name in files))
    return folder / "list.txt"


def alone(config: Config, number: int) -> Config:
    """Returns the config of one of the views without the others, written by hand, and with its seed, 2**41 apart."""
    data = config.data.model_dump(mode="json", exclude={"views"})
    view = [view for view in VIEWS for _ in range(view.get("count", 1))][number]
    data |= {key: view[key] for key in ("crop", "random_resized", "flip", "augment") if key in view}
    data |= {"crop_image_size": list(SIZES[number])}
    one = make_config({"data": data}).data
    return config.model_copy(update={"data": one.model_copy(update={"seed": config.data.seed + number * 2**41})})


GRAY = {"num_channels": 1, "resize": "bicubic", "fit": 9, "num_parallel_readers": 1}


@pytest.mark.parametrize(
    ("compared", "data"),
    [
        ((0, 1, 2, 4, 5), {}),
        ((1, 4), {"decoder": "graph", "fit": "letterbox"}),
        ((3, 4), GRAY),
        ((1,), {"on_error": "skip", "dtype": "float32", "max_pixels": 10_801, "max_bad_fraction": 0.5}),
    ],
    ids=["native", "graph", "gray", "skip"],
)
def test_views_are_those_of_pipelines_of_one_view(
    tmp_path: Path, compared: tuple[int, ...], data: dict[str, Any]
) -> None:
    """Bit for bit, in the list's order, which no seed changes."""
    keys = {"train_filelist": str(files_of_many_kinds(tmp_path)), "batch_size": 5, "crop_image_size": [32, 32]}
    keys["annotations"] = "none"
    config = make_config({"data": {**keys, **KEYS, "shuffle_buffer": 0, **data, "views": VIEWS}})
    seen = batches(config, count=4)
    assert [view.shape[1:3] for view in seen[0][0]] == SIZES
    assert len({place for *_, positions in seen for place, _ in positions.tolist()}) == 20
    for number in compared:
        for (views, labels, positions), expected in zip(seen, batches(alone(config, number), count=4), strict=True):
            np.testing.assert_array_equal(views[number], expected[0])
            np.testing.assert_array_equal(labels, expected[1])
            np.testing.assert_array_equal(positions, expected[2])
    # Views of one kind are drawn apart, and from epoch to epoch.
    views = [np.concatenate([batch[0][number] for batch in seen]) for number in range(4)]
    for one, other in ((views[0], views[1]), (views[2], views[3]), (views[0][:8], views[0][8:16])):
        assert (one != other).any(axis=(1, 2, 3)).mean() > 0.8


def views_config(sample: SampleData, folder: Path, *source: Any, **data: Any) -> Config:
    return config_of(sample, folder, *source, **{**KEYS, "views": VIEWS, **data})


def by_position(seen: list[tuple]) -> dict[int, list[bytes]]:
    """Returns the bytes of each image's views, and its label, by its stream position."""
    return {
        int(place[0]): [*(view[number].tobytes() for view in views), bytes([label])]
        for views, labels, positions in seen
        for number, (place, label) in enumerate(zip(positions, labels, strict=True))
    }


@pytest.fixture(scope="module")
def expected(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[bytes]]:
    """Returns the views at the first positions of the loose files."""
    return by_position(batches(views_config(sample, tmp_path_factory.mktemp("views")), count=6))


@pytest.mark.parametrize(
    "data",
    [
        {"service": 1},
        {"service": 1, "decoder": "graph"},
        {"cache": "memory"},
        {"unit": "box", "scope": "shard", "label_source": "object"},
    ],
    ids=["service", "service of graphs", "cache", "boxes"],
)
def test_workers_caches_and_samples_of_boxes_give_the_same(
    sample: SampleData, tmp_path: Path, data: dict[str, Any]
) -> None:
    if "unit" in data:
        data["classes"], data["views"] = sample.classes, VIEWS[:2]
    plain = views_config(sample, tmp_path, **{**data, "service": None, "cache": None})
    assert by_position(batches(views_config(sample, tmp_path, **data), count=3)) == by_position(batches(plain, count=3))


@pytest.mark.parametrize("kind", ["original", "coefficients"])
def test_packed_files_give_the_same(
    sample: SampleData, tmp_path: Path, expected: dict[int, list[bytes]], kind: str
) -> None:
    packed(config_of(sample, tmp_path, crop="full"), tmp_path / "out", kind, splits=("train",))
    assert by_position(batches(views_config(sample, tmp_path, "packed", tmp_path / "out"), count=6)) == expected


@pytest.mark.parametrize("kind", ["raw", "crops"])
def test_packed_crops_are_refused(sample: SampleData, tmp_path: Path, kind: str) -> None:
    packed(config_of(sample, tmp_path, crop="full"), tmp_path / "out", kind, splits=("train",))
    with pytest.raises(ConfigError, match=r"views make several crops.*holds one crop of each.*--kind original"):
        batches(views_config(sample, tmp_path, "packed", tmp_path / "out", crop="full"), count=1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_other_ranks_go_on_with_the_same_views(
    sample: SampleData, tmp_path: Path, expected: dict[int, list[bytes]], ranks: int
) -> None:
    config = views_config(sample, tmp_path)
    with Loader(config, "train", World(), positions=True) as loader:
        before = by_position([tf.nest.map_structure(np.asarray, next(loader)) for _ in range(2)])
        state = loader.state_dict()
    seen = dict(before)
    for rank in range(ranks):
        with Loader(config, "train", World(rank, ranks), positions=True) as loader:
            loader.load_state_dict(state)
            seen |= by_position([tf.nest.map_structure(np.asarray, next(loader))])
    assert seen == {position: expected[position] for position in range(32 + 16 * ranks)}


def test_a_state_is_of_the_views_it_was_made_with(sample: SampleData, tmp_path: Path) -> None:
    def contract(**data: Any) -> dict[str, Any]:
        return data_contract(load_split(config_of(sample, tmp_path, **KEYS, **data).data, "train", World()))

    assert contract_differences(contract(views=VIEWS), contract(views=VIEWS)) == []
    assert any("views" in breach for breach in contract_differences(contract(), contract(views=VIEWS)))
    assert any("fit" in breach for breach in contract_differences(contract(), contract(fit="letterbox")))


def test_test_data_are_as_without_views(sample: SampleData, tmp_path: Path) -> None:
    plain = batches(config_of(sample, tmp_path, **KEYS), "test", 1)
    assert_same(batches(views_config(sample, tmp_path), "test", 1), plain)


@pytest.mark.parametrize("kind", ["epochs", "batch", "boxes"])
def test_views_are_drawn(sample: SampleData, tmp_path: Path, kind: str) -> None:
    """All of an image one after the other; in several epochs the first of them."""
    what = ViewRequest(kind, count=13 if kind == "batch" else 2)
    said = view(views_config(sample, tmp_path), what, tmp_path / "a.png")
    shapes = '40x32x3, 24x24x3, 20x48x3, 32x32x3, as training sees them: "random_resized", "full", "center"'
    assert kind == "epochs" or shapes in said
    assert np.asarray(Image.open(tmp_path / "a.png")).std() > 10


def test_tfpipe_train_and_packs_of_crops_say_why_they_refuse_views(sample: SampleData, tmp_path: Path) -> None:
    config = views_config(sample, tmp_path)
    with pytest.raises(
        ConfigError, match=r"tfpipe train trains classifiers, of one class a crop, and the config has data.views: take"
    ):
        load_run(config, World())
    for kind in ("crops", "raw"):
        whole = views_config(sample, tmp_path, crop="full", views=[{"count": 2}])
        with pytest.raises(
            ConfigError, match=f"data.views make several crops of an image, and --kind {kind} packs one"
        ):
            pack(whole.data, "train", tmp_path / "out", PackPlan(kind, 1), World())


def test_loaders_of_torch_give_a_tuple_of_views(sample: SampleData, tmp_path: Path) -> None:
    config = views_config(sample, tmp_path)
    ((expected, labels, _),) = batches(config, count=1)
    with tfpipe.torch.Loader(config) as loader:
        views, same = next(loader)
    others, again = next(iter(tfpipe.torch.iterable(tfpipe.build_dataset(config))))
    for one, other, pixels in zip(views, others, expected, strict=True):
        np.testing.assert_array_equal(one.permute(0, 2, 3, 1).numpy(), pixels)
        np.testing.assert_array_equal(other.permute(0, 2, 3, 1).numpy(), pixels)
    assert same.tolist() == again.tolist() == labels.tolist()


def stacked(images: Any, labels: tf.Tensor) -> Any:
    """Puts the first two views one below the other: a user's transform."""
    first, second = images[:2]
    return {"both": tf.concat([first, second], 0)[: tf.shape(labels)[0]], "small": images[2]}, labels


def test_a_transform_gets_the_tuple(sample: SampleData, tmp_path: Path) -> None:
    config = views_config(sample, tmp_path, transform=f"{__name__}:stacked")
    (data, _, _), *_ = batches(config, count=1)
    (views, _, _), *_ = batches(views_config(sample, tmp_path), count=1)
    np.testing.assert_array_equal(data["both"], views[0])
    np.testing.assert_array_equal(data["small"], views[2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"views": [{"crop": "boxes"}]}, r'views\[0\].crop: received "boxes"; accepted: .*random_resized'),
        ({"views": [{"size": [9, 9, 9]}]}, r"views\[0\].size: received \[9, 9, 9\]; accepted: a side, or \[height, wi"),
        ({"views": [{"size": 0}]}, r"views\[0\].size"),
        ({"views": [{"count": 0}]}, r"views\[0\].count: received 0; accepted: greater than 0"),
        ({"views": [{"sizes": 5}]}, r"views\[0\].sizes: unknown key; did you mean .*views\[0\].size"),
        ({"views": {"count": 2}}, "views: received .*; accepted: a list of"),
        ({"fit": "letter"}, "fit: received \"letter\"; accepted: 'stretch' or 'letterbox'"),
        ({"fit": 256}, "fit: received 256; accepted: 'stretch' or 'letterbox' or less than or equal to 255"),
    ],
    ids=str,
)
def test_values_that_no_view_has_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config({"data": {"train_filelist": "x", **KEYS, "views": VIEWS, **data}})


def test_a_kernel_too_large_for_a_view_is_an_error(sample: SampleData, tmp_path: Path) -> None:
    views = [{"size": 24, "augment": [{"name": "GaussianBlur", "kernel_size": 49}]}]
    with pytest.raises(ConfigError, match=r"kernel_size: received 49 for crops of 24 pixels"):
        batches(views_config(sample, tmp_path, views=views), count=1)


@pytest.mark.parametrize("decoder", ["native", "graph"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_letterbox_keeps_the_aspect_ratio_and_is_mirrored_as_a_whole(
    tmp_path: Path, decoder: str, split: str
) -> None:
    path = files_of_many_kinds(tmp_path)
    lists = {"train_filelist": str(path), "test_filelist": str(path)}
    keys = {**lists, "crop": "full", "crop_image_size": [41, 60], "fit": "letterbox", "batch_size": 8, "flip": True}
    keys |= {"shuffle_buffer": 0, "decoder": decoder, "annotations": "none", "seed": 3}
    (images, _, _), *_ = batches(make_config({"data": keys}), split, 1)
    ((plain, _, _), *_) = batches(make_config({"data": keys | {"flip": False}}), split, 1)
    sizes = [Image.open(tmp_path / line).size[::-1] for line in path.read_text().split()]
    mirrored = 0
    places = letterbox_windows(tf.constant(sizes), (41, 60)).numpy()
    for image, as_it_is, (top, left, height, width) in zip(images, plain, places, strict=True):
        (columns,) = np.nonzero((image != 114).any(axis=(0, 2)))
        assert (top, height) == (0, 41) and len(columns) == width < 60
        assert columns[0] in (left, 60 - left - width) and columns[-1] - columns[0] + 1 == width
        same = np.array_equal(image, as_it_is)
        assert same or np.array_equal(image, as_it_is[:, ::-1])
        mirrored += not same
    assert (mirrored > 0) == (split == "train")


def test_a_letterbox_changes_no_crop_but_whole_images(sample: SampleData, tmp_path: Path) -> None:
    for crop in ("boxes", "center", "random_resized"):
        plain = batches(config_of(sample, tmp_path, crop=crop), count=1)
        assert_same(batches(config_of(sample, tmp_path, crop=crop, fit="letterbox"), count=1), plain)


def test_stored_crops_are_of_their_letterbox(sample: SampleData, tmp_path: Path) -> None:
    boxed = {"crop": "full", "fit": "letterbox", "test_crop": None}
    config = config_of(sample, tmp_path, **boxed)
    packed(config, tmp_path / "out", "raw", splits=("train",))
    stored = config_of(sample, tmp_path, "packed", tmp_path / "out", **boxed)
    assert_same(batches(stored, count=1), batches(config, count=1))
    with pytest.raises(ConfigError, match=r'data.fit: "letterbox, level 114" packed, "stretch" in the config'):
        batches(config_of(sample, tmp_path, "packed", tmp_path / "out", crop="full"), count=1)


def test_settings_without_effect_are_named() -> None:
    keys: dict[str, Any] = {"train_filelist": "x", **KEYS}
    views: list[dict[str, Any]] = [{"flip": False}, {"flip": False, "crop": "center", "random_resized": {}}]
    data = make_config({"data": {**keys, "fit": "letterbox", "flip": True, "views": views}}).data
    assert [message.partition(" ")[0] for message in unused_settings(data)] == [
        "data.fit", "data.views[1].random_resized", "data.flip",
    ]  # fmt: skip
    source = {"kind": "folders", "path": "x", "test_seed": 1}
    assert len(list(unused_settings(make_config({"data": {"source": source}}).data))) == 1
    views = [{"crop": "full"}, {"crop": "center"}]
    assert not list(
        unused_settings(make_config({"data": {**keys, "fit": "letterbox", "views": views, "center_fraction": 1}}).data)
    )
