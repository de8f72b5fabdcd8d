"""Crops kept: batches are bit for bit those without, in every epoch, and later epochs open no file."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.caches import check_a_bad_image, configured, epochs, whole
from tests.support.sample import SampleData
from tfpipe import Config, Frontier, Stream, World, build_dataset, load_config
from tfpipe.data import space
from tfpipe.data.catalog import load_catalog
from tfpipe.data.crop_cache import fingerprint
from tfpipe.errors import ConfigError

KEPT = {"cache_stage": "crops", "cache": "memory"}
CROP_BYTES = 32 * 32 * 3


@pytest.fixture(params=["memory", "near"])
def kept(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"cache_stage": "crops", "cache": request.param}


@pytest.mark.parametrize("decoder", ["native", "graph"])
@pytest.mark.parametrize("unit", ["image", "box"])
def test_the_second_epoch_is_the_same_without_any_source(
    sample: SampleData,
    tree: Path,
    kept: dict[str, str],
    unit: str,
    decoder: str,
) -> None:
    """Flips are others in the second epoch."""
    how = {"unit": unit, "flip": True, "decoder": decoder}
    expected = epochs(configured(sample, tree, **how))
    first, second = ({each[3] for each in epoch} for epoch in expected)
    assert first != second
    assert epochs(configured(sample, tree, **how, **kept)) == expected
    assert not tree.exists()


@pytest.mark.parametrize(
    "how",
    [
        {"crop": "center", "num_channels": 1},
        {"crop": "full", "resize": "area"},
        {"scaled_decode": True, "crop_image_size": [8, 9]},
        {"num_parallel_readers": 1},
        {"scope": "shard"},
    ],
    ids=str,
)
def test_so_are_other_crops(sample: SampleData, tree: Path, how: dict[str, object]) -> None:
    expected = epochs(configured(sample, tree, **how))
    assert epochs(configured(sample, tree, **how, **KEPT)) == expected


def test_objects_have_their_labels_and_an_image_may_give_no_crop(sample: SampleData, tree: Path) -> None:
    names = sorted({line.split("/")[-2] for line in (tree.parent / "train.txt").read_text().split()})[:3]
    how = {"label_source": "object", "classes": names, "test_label_file": None}
    expected = epochs(configured(sample, tree, **how))
    assert len(expected[0]) < 96
    assert epochs(configured(sample, tree, **how, **KEPT)) == expected


def test_every_test_pass_after_the_first_needs_no_source(
    sample: SampleData,
    tree: Path,
    kept: dict[str, str],
) -> None:
    expected = whole(configured(sample, tree))
    dataset = build_dataset(configured(sample, tree, **kept), "test", with_positions=True)
    for _ in range(2):
        assert [[part.tobytes() for part in batch] for batch in dataset.as_numpy_iterator()] == expected
        shutil.rmtree(tree, ignore_errors=True)


@pytest.mark.parametrize("taken", [7, 100, 150])
def test_a_run_goes_on_in_the_middle_of_an_epoch(
    sample: SampleData,
    tree: Path,
    kept: dict[str, str],
    taken: int,
) -> None:
    """Also from crops that an earlier run left on the disk."""
    config = configured(sample, tree, **kept)
    *_, positions = zip(*build_dataset(config, with_positions=True).take(12).as_numpy_iterator(), strict=True)
    places = [tuple(map(int, place)) for batch in positions for place in batch]
    several = next(place for place in places[taken:] if place[1] > 0)
    for place in (places[taken], several):
        stream = Stream.start(1).at([Frontier(*place)])
        plain = configured(sample, tree)
        assert whole(config, "train", steps=2, resume=stream) == whole(plain, "train", steps=2, resume=stream)


@pytest.mark.parametrize("left", [0, 10, 0.5, 0.99])
def test_a_half_written_file_is_cut_anew(sample: SampleData, tree: Path, left: float) -> None:
    config = configured(sample, tree, cache_stage="crops", cache="near")
    first = whole(config)
    files = [*(tree.parent / "near").glob("*/*/*")]
    assert len(files) == 37 and {file.suffix for file in files} == {".crops"}
    sound = {file: file.read_bytes() for file in files}
    for file, contents in sound.items():
        file.write_bytes(contents[: int(left if left >= 1 else left * len(contents))])
    assert whole(config) == first
    assert {file: file.read_bytes() for file in files} == sound


@pytest.mark.parametrize(
    "other",
    [
        {"crop_image_size": [32, 33]},
        {"resize": "area"},
        {"decoder": "graph"},
        {"scaled_decode": True},
        {"num_channels": 1},
        {"crop": "full"},
        {"crop": "center"},
        {"annotations": "none"},
        {"annotations": "lxml"},
        {"classes": ["x", "y"]},
        {"unit": "box"},
    ],
    ids=str,
)
def test_another_config_reads_none_of_them(sample: SampleData, tree: Path, other: dict[str, object]) -> None:
    def of(split: str = "train", **keys: object) -> str:
        config = configured(sample, tree, **keys)
        names = sorted({line.split("/")[-2] for line in (tree.parent / "train.txt").read_text().split()})
        if "classes" in keys:
            config = configured(sample, tree, **{**keys, "classes": [*names, *keys["classes"]]})
        return fingerprint(load_catalog(config.data, split, World()), config.data)

    assert of(**other) != of() == of(flip=True, seed=3, batch_size=7)
    assert of("test") != of()


def test_ranks_keep_their_share(sample: SampleData, tree: Path) -> None:
    for rank in range(2):
        config = configured(sample, tree, cache_stage="crops", cache="near")
        assert whole(config, world=World(rank, 2)) == whole(configured(sample, tree), world=World(rank, 2))
    folders = sorted((tree.parent / "near").iterdir())
    items = [{file.stem for file in folder.glob("*/*.crops")} for folder in folders]
    assert [folder.name[-4:] for folder in folders] == ["0of2", "1of2"]
    assert items[0].isdisjoint(items[1]) and len(items[0] | items[1]) == 37


@pytest.mark.parametrize("unit", ["image", "box"])
def test_the_size_is_of_the_crops(
    sample: SampleData,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
) -> None:
    crops = len(epochs(configured(sample, tree))[0])
    monkeypatch.setattr(space, "free_memory", lambda: int(0.9 * crops * CROP_BYTES))
    what = f"crops of {96 if unit == 'image' else crops} {'images' if unit == 'image' else 'boxes'}"
    wanted = f"{crops * CROP_BYTES / 1e9:.3g}"
    with pytest.raises(ConfigError, match=re.escape(f"the train data's {what} need {wanted} of ")):
        build_dataset(configured(sample, tree, **KEPT, unit=unit))
    with pytest.raises(ConfigError, match="crops of 48 images" if unit == "image" else "crops of .* boxes"):
        monkeypatch.setattr(space, "free_memory", lambda: 10)
        build_dataset(configured(sample, tree, **KEPT, unit=unit, scope="shard"), world=World(1, 2))


def test_an_unreadable_image_is_named_and_cut_once_repaired(
    sample: SampleData, tree: Path, kept: dict[str, str]
) -> None:
    check_a_bad_image(sample, tree, **kept)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({**KEPT, "crop": "random_resized"}, 'cache_stage "crops" keeps an image.s crops as first cut'),
        ({"cache_stage": "crops"}, "which is null"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    sample: SampleData,
    tmp_path: Path,
    keys: dict[str, object],
    said: str,
) -> None:
    with pytest.raises(ConfigError, match=said):
        _loaded(sample, tmp_path, keys)


def _loaded(sample: SampleData, tmp_path: Path, keys: dict[str, object]) -> Config:
    return load_config(sample.config(tmp_path / "c.json", data=keys))
