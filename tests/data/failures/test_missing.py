"""Samples that are left out are told with their reasons, and no others."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.configs import changed
from tests.support.examples import examples
from tests.support.left_out import left_out
from tests.support.packs import config_of, packed
from tests.support.sample import SampleData
from tests.support.spoilt import spoil
from tfpipe import Cursor, Stream, World, build_dataset, load_config
from tfpipe.config import Config
from tfpipe.data.failures.missing import DroppedLog, DroppedSample, MissingSamples
from tfpipe.data.order.permutation import Order
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Failure


@pytest.fixture
def spoilt(sample: SampleData, tree: Path, tmp_path: Path) -> tuple[Config, dict[str, str]]:
    """A config with images that cannot be used, and what is said of them, by name."""
    config = load_config(sample.config(tmp_path / "config.json", data={"train_filelist": "train.txt"}))
    return changed(config, on_error="skip", batch_size=8), spoil(tree)


@pytest.mark.parametrize("unit", ["image", "box"])
def test_all_that_is_left_out_of_an_epoch_is_told_and_why(spoilt: tuple[Config, dict[str, str]], unit: str) -> None:
    config, bad = spoilt
    if unit == "box":
        # All XMLs are read at the start.
        bad.pop(next(name for name in bad if name.endswith(".xml")))
        paths = load_split(config.data, "train", World()).catalog.paths
        tree = Path(paths.folders[0]).parents[3]
        for xml in tree.rglob("*.xml"):
            if xml.read_text() == "<annotation><object>":
                xml.unlink()
    config = changed(config, unit=unit)
    split = load_split(config.data, "train", World())
    order = split.order
    batches = []
    for _, _, positions in build_dataset(config, "train", World(), True, data=split).as_numpy_iterator():
        batches.append(positions)
        if positions[-1, 0] > 2 * order.count:
            break
    told = left_out(split, Stream.start(1), batches[:1], batches[1:20], batches[20:])
    found = {Path(failure.path).name: f"{failure.path}: {failure.reason}" for _, failure in told}
    seen, left = set(np.concatenate(batches)[:, 0].tolist()), {position for position, _ in told}
    # Every place of two epochs has been seen or left out, and none both.
    assert not seen & left
    assert set(range(2 * order.count)) <= seen | left
    assert found.keys() == bad.keys()
    for name, said in bad.items():
        assert said in found[name]


def test_a_test_pass_tells_also_what_comes_last(sample: SampleData, tree: Path, tmp_path: Path) -> None:
    data = {"test_filelist": "val.txt", "on_error": "skip", "test_crop": "center"}
    config = load_config(sample.config(tmp_path / "config.json", data=data))
    split = load_split(config.data, "test", World())
    world, bad = World(1, 2), [3, 21, 35]
    assert len(split.catalog) == 37
    for item in bad:
        Path(split.catalog.paths[item]).write_bytes(b"x")
    positions = [each[2] for each in build_dataset(config, "test", world, True).as_numpy_iterator()]
    assert np.concatenate(positions)[:, 0].tolist() == [item for item in range(1, 37, 2) if item not in bad]
    found = left_out(replace(split, world=world), Stream.start(2), positions, end=True)
    assert [(position, failure.path) for position, failure in found] == [
        (item, split.catalog.paths[item]) for item in bad
    ]


def test_an_image_resumed_after_its_last_crop_is_told_when_it_is_left_out_later(
    sample: SampleData, tree: Path, tmp_path: Path
) -> None:
    data = {"train_filelist": "train.txt", "on_error": "skip", "crop": "full", "shuffle_buffer": 0}
    config = load_config(sample.config(tmp_path / "config.json", data=data))
    split = load_split(config.data, "train", World())
    log = DroppedLog(split, math.inf)
    log.begin(Stream((Cursor(2, 1),)))
    log.add(1, np.array([[position, 0] for position in range(3, len(split.catalog) + 2)]))
    log.find_dropped()
    assert log.count == 0
    Path(split.catalog.paths[2]).unlink()
    log.add(2, np.array([[len(split.catalog) + 3, 0]]))
    log.find_dropped()
    log.confirm(math.inf)
    (left,) = log.pop_confirmed()
    assert left.position == len(split.catalog) + 2 and left.failure.path == split.catalog.paths[2]


def test_positions_that_their_user_changes_are_counted_as_they_were(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "config.json", data={"on_error": "skip", "crop": "full"}))
    log = DroppedLog(load_split(config.data, "train", World()), math.inf)
    log.begin(Stream.start(1))
    positions = np.array([[position, 0] for position in range(16)])
    log.add(1, positions)
    positions += 16
    log.find_dropped()
    assert log.count == 0


@pytest.mark.parametrize(
    "data", [{"unit": "box", "crop": "random_resized"}, {"crop": "full"}, {"crop": "boxes", "annotations": "none"}]
)
def test_a_sample_resumed_after_its_last_crop_is_not_left_out_if_its_file_is_lost(
    sample: SampleData, tree: Path, tmp_path: Path, data: dict
) -> None:
    """Its only crop was trained before, so nothing of it is missing."""
    data = {"train_filelist": "train.txt", "on_error": "skip", "shuffle_buffer": 0, **data}
    split = load_split(load_config(sample.config(tmp_path / "config.json", data=data)).data, "train", World())
    item, _ = split.catalog.image_and_box(2)
    Path(split.catalog.paths[item]).unlink()
    assert left_out(split, Stream((Cursor(2, 1),)), [np.array([[3, 0], [4, 0]])]) == []


def test_stored_crops_are_never_left_out(sample: SampleData, tmp_path: Path) -> None:
    """A bad one stops the run. A resumed run may begin after the last crop of an image."""
    out = packed(config_of(sample, tmp_path), tmp_path / "crops", "crops", splits=("train",))
    config = config_of(sample, tmp_path, "packed", out, on_error="skip", unit="image")
    split = load_split(config.data, "train", World())
    assert left_out(split, Stream((Cursor(2, 99),)), [np.array([[3, 0], [4, 0]])]) == []


def test_an_image_without_an_object_of_a_known_class_is_not_left_out(sample: SampleData, tmp_path: Path) -> None:
    data = {"label_source": "object", "classes": ["n01440764"], "test_filelist": None}
    config = load_config(sample.config(tmp_path / "config.json", data=data))
    split = load_split(config.data, "train", World())
    positions = [each[2] for each in build_dataset(config, "train", World(), True).take(3).as_numpy_iterator()]
    gaps = set(range(positions[-1][-1, 0])) - set(np.concatenate(positions)[:, 0].tolist())
    assert gaps
    assert left_out(split, Stream.start(1), positions) == []


def test_an_image_that_was_lost_and_can_be_read_counts_too(sample: SampleData, tmp_path: Path) -> None:
    """The cause that made the pipeline drop it has passed."""
    config = load_config(sample.config(tmp_path / "config.json", data={"on_error": "skip", "crop": "full"}))
    split = load_split(config.data, "train", World())
    batches = [each[2] for each in build_dataset(config, "train", World(), True).take(3).as_numpy_iterator()]
    lost = int(batches[1][4, 0])
    batches[1] = np.delete(batches[1], 4, axis=0)
    (left,) = left_out(split, Stream.start(1), batches)
    item = int(split.order.items(np.array([lost]))[0])
    assert left == (
        lost,
        Failure(split.catalog.paths[item], "it could not be read when it was due, but can be read now"),
    )


def test_a_sample_whose_last_crop_was_in_the_batch_before_is_not_missing() -> None:
    gaps = MissingSamples(Stream.start(1), Order(10, shuffle=False), World())
    missing, gaps = gaps.find_missing([np.array([[0, 0], [1, 0], [1, 1]])])
    assert missing.position.tolist() == []
    assert gaps.find_missing([np.array([[3, 0]])])[0].position.tolist() == [2]


@settings(max_examples=examples(50))
@given(st.integers(4, 30), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2))
def test_samples_count_to_the_epoch_in_which_the_rank_visits_them(
    count: int, size: int, repeats: int, epoch: int
) -> None:
    for scope, rank in itertools.product(("global", "shard"), range(size)):
        order, world = Order(count, scope=scope, repeats=repeats), World(rank, size)
        split = SimpleNamespace(order=order, world=world, config=SimpleNamespace(on_error="raise"), stores="images")
        log = DroppedLog(split, 0.0)
        log._open = {place: DroppedSample(place, Failure("a", "b")) for place in order.positions(epoch, world)}
        assert log.counts == {epoch: len(order.positions(epoch, world))}


def test_a_sample_without_an_object_is_looked_at_again_once_its_files_have_changed(
    sample: SampleData, tree: Path, tmp_path: Path
) -> None:
    data = {"train_filelist": "train.txt", "on_error": "skip", "shuffle_buffer": 0, "label_source": "object"}
    data |= {"classes": ["n01440764"]}
    config = load_config(sample.config(tmp_path / "config.json", data={**data, "test_filelist": None}))
    split = load_split(config.data, "train", World())
    item = int(np.flatnonzero(split.catalog.annotated)[0])
    xml = Path(split.catalog.annotation(item))
    xml.write_text("<annotation></annotation>")
    log, epoch = DroppedLog(split, math.inf), len(split.catalog)
    for number, position in enumerate(range(item, 3 * epoch, epoch)):
        log.begin(Stream((Cursor(position),)))
        if number == 2:
            xml.write_text("<annotation><object>")
        log.add(number, np.array([[position + 1, 0]]))
        log.find_dropped()
        assert log.count == (number == 2)
