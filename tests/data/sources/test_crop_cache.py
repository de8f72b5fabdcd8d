"""Crops kept: batches are bit for bit those without, in every epoch, and later epochs open no file."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.batches import crops, crops_in
from tests.support.caches import check_a_bad_image, check_later_epochs, configured, uncached
from tests.support.sample import SampleData
from tfpipe import Config, Cursor, Stream, World, build_dataset, load_config
from tfpipe.config import DataConfig
from tfpipe.data.sources import space
from tfpipe.data.sources.crop_cache import crops_fingerprint
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.native import KERNELS

KEPT = {"cache_stage": "crops", "cache": "memory"}
NEAR = {"cache_stage": "crops", "cache": "near"}
CROP_BYTES = 32 * 32 * 3
REPEATED = pytest.mark.full("the branches of the other cells, in other combinations")


@pytest.mark.parametrize(
    ("cache", "unit", "decoder"),
    [
        ("memory", "image", "native"),
        ("near", "box", "native"),
        pytest.param("near", "image", "graph", marks=REPEATED),
        pytest.param("near", "image", "native", marks=REPEATED),
        pytest.param("memory", "box", "native", marks=REPEATED),
        pytest.param("memory", "image", "graph", marks=REPEATED),
        pytest.param("memory", "box", "graph", marks=REPEATED),
        pytest.param("near", "box", "graph", marks=REPEATED),
    ],
)
def test_the_second_epoch_is_the_same_without_any_source(
    sample: SampleData, tree: Path, cache: str, unit: str, decoder: str
) -> None:
    """Flips are others in the second epoch."""
    kept = {"cache_stage": "crops", "cache": cache}
    seen = check_later_epochs(sample, tree, kept, unit=unit, flip=True, decoder=decoder)
    samples = load_split(configured(sample, tree, unit=unit).data, "train", World()).catalog.samples
    first, second = ({each[3] for each in seen if each[0] // samples == epoch} for epoch in (0, 1))
    assert first != second


@pytest.mark.parametrize(
    "how",
    [
        {"crop": "center", "num_channels": 1, "scope": "shard", "decoder": "graph", "flip": True},
        *(
            pytest.param(how, marks=REPEATED)
            for how in (
                {"crop": "center", "num_channels": 1},
                {"crop": "full", "resize": "area"},
                {"crop_image_size": [8, 9]},
                {"num_parallel_readers": 1},
                {"scope": "shard"},
            )
        ),
    ],
    ids=str,
)
def test_so_are_other_crops(sample: SampleData, tree: Path, how: dict[str, object]) -> None:
    check_later_epochs(sample, tree, KEPT, **how)


def test_objects_have_their_labels_and_an_image_may_give_no_crop(sample: SampleData, tree: Path) -> None:
    """Crops that are not square, in a serial pipeline."""
    how = {"label_source": "object", "classes": sample.classes[:3], "test_label_file": None}
    other = {"resize": "area", "crop_image_size": [8, 9], "num_parallel_readers": 1}
    seen = check_later_epochs(sample, tree, KEPT, **how, **other)
    assert len({position for position, *_ in seen if position < 96}) < 96


@pytest.mark.parametrize("cache", ["memory", pytest.param("near", marks=REPEATED)])
def test_every_test_pass_after_the_first_needs_no_source(sample: SampleData, tree: Path, cache: str) -> None:
    config = configured(sample, tree, cache_stage="crops", cache=cache)
    dataset = build_dataset(config, "test", with_positions=True)
    for _ in range(2):
        assert crops_in(dataset) == uncached(sample, tree, "test")
        shutil.rmtree(tree, ignore_errors=True)


@pytest.mark.parametrize(
    ("cache", "taken"),
    [
        ("near", 100),
        *(
            pytest.param(cache, taken, marks=REPEATED)
            for cache, taken in [("near", 7), ("near", 150), ("memory", 7), ("memory", 100), ("memory", 150)]
        ),
    ],
)
def test_a_run_goes_on_in_the_middle_of_an_epoch(sample: SampleData, tree: Path, cache: str, taken: int) -> None:
    """Also of an image, of which all crops are kept then; and from the folder that an earlier run has filled."""
    config = configured(sample, tree, cache_stage="crops", cache=cache, flip=True)
    expected = uncached(sample, tree, flip=True)
    last = next(place for place in range(taken, len(expected)) if expected[place][1] == 2)
    for begin in (last, last - 1):
        stream = Stream.start(1).at([Cursor(*expected[begin][:2])])
        assert crops(config, "train", steps=2, resume=stream) == expected[begin : begin + 32]


def test_a_rank_keeps_its_share_and_cuts_half_written_files_anew(sample: SampleData, tree: Path) -> None:
    config, world = configured(sample, tree, **NEAR), World(1, 2)
    expected = [each for each in uncached(sample, tree, "test") if each[0] % 2 == 1]
    assert crops(config, "test", world) == expected
    (folder,) = (tree.parent / "near").iterdir()
    assert folder.name.endswith("-1of2")
    sound = {file: file.read_bytes() for file in folder.glob("*/*")}
    assert {file.name for file in sound} == {f"{image}.crops" for image in range(1, 37, 2)}
    for number, (file, contents) in enumerate(sound.items()):
        half, most = int(0.5 * len(contents)), int(0.99 * len(contents))
        file.write_bytes(contents[: (0, 10, half, most)[number % 4]])
    assert crops(config, "test", world) == expected
    assert {file: file.read_bytes() for file in sound} == sound


@pytest.mark.parametrize(
    "other",
    [
        {"crop_image_size": [32, 33]},
        {"resize": "area"},
        {"resize": "bicubic"},
        {"resize": "antialias"},
        {"decoder": "graph"},
        {"num_channels": 1},
        {"crop": "full"},
        {"crop": "center"},
        {"annotations": "none"},
        {"classes": ["x", "y"]},
        {"unit": "box"},
    ],
    ids=str,
)
def test_another_config_reads_none_of_them(sample: SampleData, tmp_path: Path, other: dict[str, object]) -> None:
    def of(split: str = "train", **keys: object) -> str:
        if "classes" in keys:
            keys = {**keys, "classes": [*sample.classes, *keys["classes"]]}
        config = load_config(sample.config(tmp_path / "c.json", data={"annotations": "xml", **keys}))
        return crops_fingerprint(load_split(config.data, split, World()))

    assert of(**other) != of() == of(flip=True, seed=3, batch_size=7)
    assert of("test") != of()


@pytest.mark.parametrize("decoder", ["auto", "graph"])
def test_only_kernels_whose_pixels_have_changed_have_another_name(decoder: str) -> None:
    """In caches, in packed data and in checkpoints; TensorFlow's ops made what they hold of other kernels."""
    names = {kernel: DataConfig(train_filelist=Path("x"), decoder=decoder, resize=kernel) for kernel in KERNELS}
    assert {kernel for kernel, config in names.items() if config.stored_resize != kernel} == {"bicubic"}
    assert all(config.native == (decoder == "auto") for config in names.values())


@pytest.mark.parametrize("unit", ["image", "box"])
def test_the_size_is_of_the_crops(
    sample: SampleData,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
) -> None:
    crops = sum(position < 96 for position, *_ in uncached(sample, tree, flip=True))
    monkeypatch.setattr(space, "free_memory", lambda: int(0.9 * crops * CROP_BYTES))
    what = f"crops of {96 if unit == 'image' else crops} {'images' if unit == 'image' else 'boxes'}"
    wanted = f"{crops * CROP_BYTES / 1e9:.3g}"
    with pytest.raises(ConfigError, match=re.escape(f"the train data's {what} need {wanted} of ")):
        build_dataset(configured(sample, tree, **KEPT, unit=unit))
    with pytest.raises(ConfigError, match="crops of 48 images" if unit == "image" else "crops of .* boxes"):
        monkeypatch.setattr(space, "free_memory", lambda: 10)
        build_dataset(configured(sample, tree, **KEPT, unit=unit, scope="shard"), world=World(1, 2))


@pytest.mark.parametrize("cache", ["near", pytest.param("memory", marks=pytest.mark.full("nothing of it is kept"))])
def test_an_unreadable_image_is_named_and_cut_once_repaired(sample: SampleData, tree: Path, cache: str) -> None:
    check_a_bad_image(sample, tree, cache_stage="crops", cache=cache)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({**KEPT, "crop": "random_resized"}, "crops are kept, and these change"),
        ({"cache_stage": "crops"}, "the key says what is cached"),
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
