"""Files kept near: the batches stay the same, and the second epoch leaves the sources alone."""

import logging
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.batches import crops, crops_in
from tests.support.caches import check_a_bad_image, check_later_epochs, configured, uncached
from tests.support.sample import SampleData
from tests.support.targets import LABEL, catalog_of, data_config
from tfpipe import Cursor, Loader, Stream, World, build_dataset
from tfpipe.data.failures import diagnose
from tfpipe.data.sources import space
from tfpipe.data.sources.files import FileSplit
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError

REPEATED = pytest.mark.full("the branches of the other cells, in other combinations")


@pytest.mark.parametrize(
    ("cache", "unit"),
    [
        ("memory", "image"),
        ("near", "box"),
        pytest.param("memory", "box", marks=REPEATED),
        pytest.param("near", "image", marks=REPEATED),
    ],
)
def test_the_second_epoch_is_the_same_without_any_source(sample: SampleData, tree: Path, cache: str, unit: str) -> None:
    seen = check_later_epochs(sample, tree, {"cache": cache}, unit=unit, crop="random_resized")
    first, second = ([each[3] for each in seen[begin : begin + 96]] for begin in (0, 96))
    assert first != second


@pytest.mark.parametrize("cache", ["memory", pytest.param("near", marks=REPEATED)])
def test_every_test_pass_after_the_first_needs_no_source(sample: SampleData, tree: Path, cache: str) -> None:
    dataset = build_dataset(configured(sample, tree, cache=cache), "test", with_positions=True)
    for _ in range(2):
        assert crops_in(dataset) == uncached(sample, tree, "test")
        shutil.rmtree(tree, ignore_errors=True)


def test_ranks_fill_one_folder_for_each_other_and_for_later_runs(
    sample: SampleData, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a source nor space on the disk is needed then; training data that is not there yet finds too little."""
    config = configured(sample, tree, cache="near")
    split = load_split(config.data, "test", World())
    expected = uncached(sample, tree, "test")
    for rank in range(2):
        assert crops(config, "test", World(rank, 2), data=split) == [each for each in expected if each[0] % 2 == rank]
    (folder,) = (tree.parent / "near").iterdir()
    assert folder.name == f"tfpipe-{split.catalog.paths.digest[:16]}"
    wanted = {f"{image}{kind}" for image in range(37) for kind in (".jpg", ".xml")}
    assert {file.name for file in folder.glob("*/*")} == wanted
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: usage(8192))
    with pytest.raises(ConfigError, match=rf"of 8.19e-06 GB free on the disk of {re.escape(str(tree.parent))}/near"):
        build_dataset(config)
    shutil.rmtree(tree)
    assert crops(config, "test", data=split) == expected


@pytest.mark.parametrize(
    ("cache", "taken"),
    [
        ("memory", 100),
        *(
            pytest.param(cache, taken, marks=REPEATED)
            for cache, taken in [("near", 7), ("near", 100), ("near", 150), ("memory", 7), ("memory", 150)]
        ),
    ],
)
def test_a_run_goes_on_in_the_middle_of_an_epoch(sample: SampleData, tree: Path, cache: str, taken: int) -> None:
    how = {"crop": "random_resized", "unit": "image"}
    config = configured(sample, tree, cache=cache, **how)
    expected = uncached(sample, tree, **how)
    stream = Stream.start(1).at([Cursor(*expected[taken][:2])])
    assert crops(config, "train", steps=2, resume=stream) == expected[taken : taken + 32]


def test_too_little_memory_is_refused_with_the_numbers(
    sample: SampleData, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(sample, tree, cache="memory")
    monkeypatch.setattr(space, "free_memory", lambda: 200_000)
    with pytest.raises(ConfigError, match=r'96 images will take \S+ of 0.0002 GB free in memory.* data.scope "shard"'):
        build_dataset(config)
    with pytest.raises(ConfigError, match=r"of 5e-05 GB free in memory for each of 4 ranks"):
        build_dataset(config, world=World(0, 4, local_size=4))


def test_the_size_is_of_what_the_rank_comes_to_see(
    sample: SampleData, tree: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "free_memory", lambda: 10**9)
    wanted = {}
    for scope in ("global", "shard"):
        with caplog.at_level(logging.INFO, "tfpipe.data.sources.space"):
            build_dataset(configured(sample, tree, cache="memory", scope=scope), world=World(1, 4))
        said = re.fullmatch(r"cache: (\S+) of 1 GB free in memory", caplog.messages[-1])
        wanted[scope] = float(said[1])
    size = sum(file.stat().st_size for folder in ("Data", "Annotations") for file in tree.glob(f"{folder}/*/train/*/*"))
    assert wanted["global"] == pytest.approx(size / 1e9, rel=0.01)
    assert wanted["shard"] == pytest.approx(size / 4e9, rel=0.01)


@pytest.mark.parametrize(("scope", "shares"), [("global", 1), ("shard", 4)])
def test_ranks_that_cache_the_same_images_share_the_room_of_a_disk(
    sample: SampleData,
    tree: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    scope: str,
    shares: int,
) -> None:
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: namedtuple("usage", "free")(10**9))
    with caplog.at_level(logging.INFO, "tfpipe.data.sources.space"):
        build_dataset(configured(sample, tree, cache="near", scope=scope), world=World(1, 4, local_size=4))
    said = re.fullmatch(
        r"cache: \S+ of (\S+) GB free on the disk of \S+?(?: for each of 4 ranks)?", caplog.messages[-1]
    )
    assert float(said[1]) == 1 / shares


def test_a_folder_that_cannot_be_made_is_named(sample: SampleData, tree: Path) -> None:
    (tree.parent / "near").write_text("a file")
    with pytest.raises(ConfigError, match=rf"data.cache: cannot use the folder {re.escape(str(tree.parent))}/near/tf"):
        build_dataset(configured(sample, tree, cache="near"))


@pytest.mark.parametrize("cache", ["near", pytest.param("memory", marks=pytest.mark.full("nothing of it is kept"))])
def test_an_unreadable_image_is_named_and_read_anew_once_repaired(sample: SampleData, tree: Path, cache: str) -> None:
    check_a_bad_image(sample, tree, cache=cache)


def test_an_image_is_forgotten_with_its_xml_and_no_other(tmp_path: Path) -> None:
    split = FileSplit(data_config(cache=tmp_path), catalog_of([LABEL] * 1002), World(1, 2))
    folder = tmp_path / f"tfpipe-{split.catalog.paths.digest[:16]}"
    files = [folder / name for name in ("0/1.jpg", "0/1.xml", "1/1001.jpg", "1/1001.xml")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    split.evict(1001)
    split.evict(1000)
    assert [file for file in files if file.exists()] == files[:2]


@pytest.mark.parametrize("cache", ["memory", pytest.param("near", marks=REPEATED)])
def test_a_missing_image_is_named(sample: SampleData, tree: Path, cache: str) -> None:
    config = configured(sample, tree, cache=cache)
    bad = load_split(config.data, "test", World()).catalog.paths[20]
    Path(bad).unlink()
    with pytest.raises(tf.errors.NotFoundError, match=re.escape(bad)):
        crops(config, "test")


def test_a_cache_that_cannot_be_written_is_no_fault_of_an_image(
    sample: SampleData, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `data.on_error` "skip" too: as on a full disk, all images would be left out."""
    monkeypatch.setattr(diagnose, "LOOK_AHEAD", 10)
    config = configured(sample, tree, cache="near", on_error="skip")
    split = load_split(config.data, "train", World())
    folder = tree.parent / f"near/tfpipe-{split.catalog.paths.digest[:16]}"
    folder.mkdir(parents=True)
    (folder / "0").write_text("where a folder of the cache would be")
    with (
        Loader(config, data=split) as loader,
        pytest.raises(TfpipeError, match=f"rank 0: stopped: {folder}/0.*; Not a"),
    ):
        next(loader)
