"""Files kept near: the batches stay the same, and the second epoch leaves the sources alone."""

import logging
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.caches import check_a_bad_image, configured, epochs, whole
from tests.support.sample import SampleData
from tfpipe import Frontier, Stream, World, build_dataset
from tfpipe.data import space
from tfpipe.data.catalog import load_catalog
from tfpipe.errors import ConfigError

CROPS = 16


@pytest.fixture(params=["memory", "near"])
def kept(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("unit", ["image", "box"])
def test_the_second_epoch_is_the_same_without_any_source(sample: SampleData, tree: Path, kept: str, unit: str) -> None:
    how = {"unit": unit, "crop": "random_resized"}
    expected = epochs(configured(sample, tree, **how))
    assert [position for position, *_ in expected[0]] != [position for position, *_ in expected[1]]
    assert epochs(configured(sample, tree, **how, cache=kept)) == expected
    assert not tree.exists()


def test_every_test_pass_after_the_first_needs_no_source(sample: SampleData, tree: Path, kept: str) -> None:
    dataset = build_dataset(configured(sample, tree, cache=kept), "test")
    first = [images.tobytes() for images, _ in dataset.as_numpy_iterator()]
    shutil.rmtree(tree)
    assert [images.tobytes() for images, _ in dataset.as_numpy_iterator()] == first


def test_a_later_run_finds_the_folder_filled(sample: SampleData, tree: Path) -> None:
    config = configured(sample, tree, cache="near")
    catalog = load_catalog(config.data, "test", World())
    first = whole(config, catalog=catalog)
    shutil.rmtree(tree)
    assert whole(config, catalog=catalog) == first


@pytest.mark.parametrize("left", [0, 10, 0.5, 0.99])
def test_a_half_written_file_is_read_again_from_its_source(sample: SampleData, tree: Path, left: float) -> None:
    config = configured(sample, tree, cache="near")
    first = whole(config)
    files = [*(tree.parent / "near").glob("*/*/*.jpg"), *(tree.parent / "near").glob("*/*/*.xml")]
    assert len(files) == 74
    sound = {file: file.read_bytes() for file in files}
    for file, contents in sound.items():
        file.write_bytes(contents[: int(left if left >= 1 else left * len(contents))])
    assert whole(config) == first
    assert {file: file.read_bytes() for file in files} == sound


def test_a_file_kept_of_another_source_is_not_taken(sample: SampleData, tree: Path) -> None:
    config = configured(sample, tree, cache="near")
    first = whole(config)
    one, other = sorted((tree.parent / "near").glob("*/*/*.jpg"))[:2]
    one.write_bytes(other.read_bytes())
    assert whole(config) == first


def test_ranks_have_folders_of_their_own(sample: SampleData, tree: Path) -> None:
    config = configured(sample, tree, cache="near", crop="full")
    assert whole(config, world=World(0, 2)) != whole(config, world=World(1, 2))
    digest = load_catalog(config.data, "test", World()).paths.digest[:16]
    folders = {folder.name: folder for folder in (tree.parent / "near").iterdir()}
    assert set(folders) == {f"tfpipe-{digest}-0of2", f"tfpipe-{digest}-1of2"}
    images = [{file.stem for file in folder.glob("*/*.jpg")} for folder in folders.values()]
    assert images[0].isdisjoint(images[1]) and len(images[0] | images[1]) == 37


@pytest.mark.parametrize("taken", [7, 100, 150])
def test_a_run_goes_on_in_the_middle_of_an_epoch(sample: SampleData, tree: Path, kept: str, taken: int) -> None:
    config = configured(sample, tree, cache=kept)
    *_, positions = zip(*build_dataset(config, with_positions=True).take(12).as_numpy_iterator(), strict=True)
    places = [tuple(map(int, place)) for batch in positions for place in batch]
    stream = Stream.start(1).at([Frontier(*places[taken])])
    plain = configured(sample, tree)
    assert whole(config, "train", steps=2, resume=stream) == whole(plain, "train", steps=2, resume=stream)


def test_too_little_memory_is_refused_with_the_numbers(
    sample: SampleData, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(sample, tree, cache="memory")
    monkeypatch.setattr(space, "free_memory", lambda: 200_000)
    with pytest.raises(ConfigError, match=r'96 images need \S+ of 0.0002 GB free in memory, .* data.scope "shard"'):
        build_dataset(config)
    with pytest.raises(ConfigError, match=r"of 5e-05 GB free in memory for each of 4 ranks"):
        build_dataset(config, world=World(0, 4, local_size=4))


def test_too_small_a_disk_is_refused_unless_it_holds_the_files_already(
    sample: SampleData, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(sample, tree, cache="near")
    usage = namedtuple("usage", "free")
    first = whole(config)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: usage(8192))
    assert whole(config) == first
    with pytest.raises(ConfigError, match=rf"of 8.19e-06 GB free on the disk of {re.escape(str(tree.parent))}/near"):
        build_dataset(config)


def test_the_size_is_of_what_the_rank_comes_to_see(
    sample: SampleData, tree: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "free_memory", lambda: 10**9)
    wanted = {}
    for scope in ("global", "shard"):
        with caplog.at_level(logging.INFO, "tfpipe.data.space"):
            build_dataset(configured(sample, tree, cache="memory", scope=scope), world=World(1, 4))
        said = re.fullmatch(r"cache: (\S+) of 1 GB free in memory", caplog.messages[-1])
        wanted[scope] = float(said[1])
    size = sum(file.stat().st_size for folder in ("Data", "Annotations") for file in tree.glob(f"{folder}/*/train/*/*"))
    assert wanted["global"] == pytest.approx(size / 1e9, rel=0.01)
    assert wanted["shard"] == pytest.approx(size / 4e9, rel=0.01)


def test_a_folder_that_cannot_be_made_is_named(sample: SampleData, tree: Path) -> None:
    (tree.parent / "near").write_text("a file")
    with pytest.raises(ConfigError, match=rf"data.cache: cannot use the folder {re.escape(str(tree.parent))}/near/tf"):
        build_dataset(configured(sample, tree, cache="near"))


def test_an_unreadable_image_is_named_and_read_anew_once_repaired(sample: SampleData, tree: Path, kept: str) -> None:
    check_a_bad_image(sample, tree, cache=kept)


def test_a_missing_image_is_named(sample: SampleData, tree: Path, kept: str) -> None:
    config = configured(sample, tree, cache=kept)
    bad = load_catalog(config.data, "test", World()).paths[20]
    Path(bad).unlink()
    with pytest.raises(tf.errors.NotFoundError, match=re.escape(bad)):
        whole(config)
