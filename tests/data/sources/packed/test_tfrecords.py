"""TFRecords that others made, read as they are."""

import logging
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.annotations import read_annotation
from tests.support.batches import crops
from tests.support.packs import config_of
from tests.support.sample import SampleData
from tests.support.tfrecords import write_examples
from tfpipe import Config, Loader, World
from tfpipe.data.sources.packed import tfrecords as module
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index


def write_as_slim(config: Config, split: str, out: Path, shards: int, leave_out: tuple[str, ...] = ()) -> list[str]:
    """Writes as build_imagenet_data.py: shuffled, labels from 1, one label a box. Returns the files in that order."""
    catalog = load_split(config.data, split, World()).catalog
    items = list(range(len(catalog)))
    random.Random(12345).shuffle(items)
    bounds = np.linspace(0, len(items), shards + 1).astype(int)
    prefix = {"train": "train", "test": "validation"}[split]
    out.mkdir(exist_ok=True)
    for shard in range(shards):
        examples = []
        for item in items[bounds[shard] : bounds[shard + 1]]:
            path, annotation, label = catalog.paths[item], catalog.annotation(item), int(catalog.labels[item])
            with Image.open(path) as image:
                width, height = image.size
            sides = [height, width, height, width]
            boxes = read_annotation(annotation).boxes / sides if annotation else np.zeros((0, 4))
            features = {
                "image/height": height,
                "image/width": width,
                "image/colorspace": b"RGB",
                "image/channels": 3,
                "image/class/label": label + 1,
                "image/class/synset": catalog.classes[label].encode(),
                "image/class/text": b"a thing",
                "image/object/bbox/xmin": boxes[:, 1],
                "image/object/bbox/xmax": boxes[:, 3],
                "image/object/bbox/ymin": boxes[:, 0],
                "image/object/bbox/ymax": boxes[:, 2],
                "image/object/bbox/label": np.full(len(boxes), label + 1),
                "image/format": b"JPEG",
                "image/filename": Path(path).name.encode(),
                "image/encoded": Path(path).read_bytes(),
            }
            examples.append({name: value for name, value in features.items() if name not in leave_out})
        write_examples(out / f"{prefix}-{shard:05}-of-{shards:05}", *examples)
    return [catalog.paths[item] for item in items]


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Config:
    return config_of(sample, tmp_path)


@pytest.fixture(scope="module")
def as_slim(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both splits as TFRecords, lists of the files in their order there, and indexes of these."""
    folder = tmp_path_factory.mktemp("slim")
    config = config_of(sample, folder)
    for split, shards in (("train", 4), ("test", 2)):
        files = write_as_slim(config, split, folder / "records", shards)
        (folder / f"{split}.txt").write_text("".join(f"{path}\n" for path in files))
        build_index(listed(sample, folder, folder).data, split, World(), 1)
    return folder


def listed(sample: SampleData, folder: Path, as_slim: Path, **how: object) -> Config:
    """A config of the files in the order of the records."""
    lists = {f"{split}_filelist": str(as_slim / f"{split}.txt") for split in ("train", "test")}
    return config_of(sample, folder, **lists, index=str(as_slim), **how)


@pytest.fixture
def records(as_slim: Path, tmp_path: Path) -> Path:
    """TFRecords that may be spoilt, and were not scanned yet."""
    return shutil.copytree(as_slim / "records", tmp_path / "records", ignore=shutil.ignore_patterns("*.catalog"))


@pytest.fixture
def load(sample: SampleData, tmp_path: Path, records: Path) -> Callable[..., Split]:
    """Loads a split of the TFRecords."""

    def load_records(split: str = "train", **how: object) -> Split:
        return load_split(config_of(sample, tmp_path, "tfrecord", records, **how).data, split, World())

    return load_records


@pytest.mark.parametrize(
    ("how", "split"),
    [({"unit": "box", "flip": True}, "train"), ({"crop": "random_resized"}, "train"), ({}, "test")],
    ids=str,
)
def test_they_give_what_the_same_files_give(
    sample: SampleData, tmp_path: Path, as_slim: Path, records: Path, how: dict, split: str
) -> None:
    """In the order of the records; to the pixel, but where the two make another float of a box's edge."""
    loose = listed(sample, tmp_path, as_slim, **how)
    config = config_of(sample, tmp_path, "tfrecord", records, **how)
    world, steps = (World(1, 2), 8) if split == "train" else (World(), -1)
    expected, got = crops(loose, split, world, steps), crops(config, split, world, steps)
    assert [each[:3] for each in got] == [each[:3] for each in expected]
    same = [one[3] == other[3] for one, other in zip(got, expected, strict=True)]
    assert np.mean(same) > 0.95
    catalogs = [load_split(each.data, split, World()).catalog for each in (loose, config)]
    assert catalogs[0].classes == catalogs[1].classes
    assert np.array_equal(catalogs[0].annotated, catalogs[1].annotated)


def test_files_without_numbers_are_found_by_their_suffix(load: Callable[..., Split], records: Path) -> None:
    for number, path in enumerate(sorted(records.glob("train-*"))):
        path.rename(records / ("train.tfrec" if number == 0 else f"train_{number}.tfrecords"))
    (records / "train.tfrec.idx").write_text("an index of other tools")
    found = load()
    assert len(found.catalog) == 96 and Loader(records, batch_size=8).data.catalog.paths == found.catalog.paths


def test_they_are_scanned_once(
    load: Callable[..., Split], tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """And again if a shard has changed, which is logged; in data.index where that is set."""
    scanned = []
    scan = module._scan_shard
    monkeypatch.setattr(module, "_scan_shard", lambda path, *how: scanned.append(path.name) or scan(path, *how))
    first = load().catalog
    assert len(scanned) == 4 and len(list(records.glob("train.catalog/tfrecord-*"))) == 1
    again = load().catalog
    assert len(scanned) == 4 and again.paths == first.paths and np.array_equal(again.labels, first.labels)
    assert all(np.array_equal(a, b) for a, b in zip(again.boxes, first.boxes, strict=True))
    kept = next(iter(tf.data.TFRecordDataset(str(records / "train-00000-of-00004")))).numpy()
    write_record(records / "train-00002-of-00004", kept)
    with caplog.at_level(logging.WARNING):
        changed = load().catalog
    assert re.search(r"train-00002-of-00004 had \d+ bytes then, has \d+ now; it is made again", caplog.text)
    assert len(scanned) == 8 and len(changed) == len(first) - 23
    (tmp_path / "indexes").mkdir()
    load("test", index="indexes")
    names = sorted(re.sub("-[0-9a-f]{8}", "", each.name) for each in (tmp_path / "indexes").iterdir())
    assert names == ["test.catalog", "train.catalog"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record[:8] + b"?" + record[9:],
        lambda record: b"\x07" + record[1:],
        lambda record: bytes(len(record)),
        lambda record: record[:900] + bytes([record[900] ^ 1]) + record[901:],
    ],
)
def test_a_damaged_record_is_named(load: Callable[..., Split], records: Path, damage: Callable[[bytes], bytes]) -> None:
    shard = records / "train-00001-of-00004"
    contents = shard.read_bytes()
    start = 12 + int.from_bytes(contents[:8], "little") + 4
    shard.write_bytes(contents[:start] + damage(contents[start:]))
    with pytest.raises(ConfigError, match=rf"{shard}: record 1: it is damaged from byte {start} on.*; copy"):
        load()
    assert not list(records.glob("train.catalog/tfrecord-*"))


def test_without_synsets_labels_go_by_number(sample: SampleData, config: Config, tmp_path: Path) -> None:
    left_out = ("image/class/synset", "image/filename", "image/object/bbox/label")
    files = write_as_slim(config, "train", tmp_path / "plain", 2, left_out)
    loose = load_split(config.data, "train", World()).catalog
    expected = dict(zip(loose.paths, loose.labels.tolist(), strict=True))
    catalog = load_split(config_of(sample, tmp_path, "tfrecord", tmp_path / "plain").data, "train", World()).catalog
    assert catalog.labels.tolist() == [expected[path] for path in files]
    assert catalog.classes == tuple("12345678")
    assert catalog.paths[50] == "train-00001-of-00002:2"
    assert len(catalog.boxes.labels) > len(catalog)
    some = config_of(sample, tmp_path, "tfrecord", tmp_path / "plain", classes=["a", "b"])
    with pytest.raises(
        ConfigError, match=f"{(catalog.labels >= 2).sum()} of 96 records in .* have a label that is no class"
    ):
        load_split(some.data, "train", World())


def test_odd_boxes_become_sound_ones(sample: SampleData, tmp_path: Path) -> None:
    """Swapped, out of the image, empty, of another class: as those of XMLs."""
    boxes = {
        "ymin": [0.5, -0.2, 0.3, 0.1],
        "ymax": [0.1, 0.5, 0.3, 0.9],
        "xmin": [0.2, 0.0, 0.1, 0.1],
        "xmax": [0.4, 1.005, 0.9, 0.9],
    }
    about = {"image/object/bbox/label": [1, 1, 1, 2], "image/class/label": 1, "image/encoded": b"x"}
    (tmp_path / "odd").mkdir()
    examples = (
        about | {f"image/object/bbox/{edge}": values for edge, values in edges.items()}
        for edges in (boxes, dict.fromkeys(boxes, [0.5] * 4))
    )
    write_examples(tmp_path / "odd/train-00000-of-00001", *examples)
    found = load_split(config_of(sample, tmp_path, "tfrecord", tmp_path / "odd").data, "train", World()).catalog.boxes
    assert found.images.tolist() == [0, 0, 1]
    np.testing.assert_allclose(found.boxes, [[0.1, 0.2, 0.5, 0.4], [0, 0, 0.5, 1], [0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda shard: shard.write_bytes(shard.read_bytes()[:-9]),
            "record 23: it is damaged from byte .*, or ends at byte .* within it",
        ),
        (lambda shard: shard.write_bytes(b"not one of TFRecords"), "record 0: .*, or the file is no TFRecord"),
        (lambda shard: shard.unlink(), "3 of 4 shards train-.* are there"),
        (lambda shard: write_record(shard, b"\xff\xff"), "record 0: it is no tf.train.Example"),
        (lambda shard: write_record(shard, b""), "record 0: it has no image/encoded, but nothing"),
    ],
    ids=["cut", "other", "gone", "garbage", "empty"],
)
def test_damage_is_named(load: Callable[..., Split], records: Path, spoil, said: str) -> None:
    spoil(records / "train-00003-of-00004")
    with pytest.raises(ConfigError, match=said):
        load()


def write_record(shard: Path, data: bytes) -> None:
    with tf.io.TFRecordWriter(str(shard)) as writer:
        writer.write(data)


@pytest.mark.parametrize("kind", [tf.errors.PermissionDeniedError, tf.errors.UnknownError])
def test_an_error_of_the_system_is_named_with_the_shard(
    load: Callable[..., Split], monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    def refuse(path: str) -> None:
        raise kind(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(module, "tf_record_random_reader", refuse)
    with pytest.raises(ConfigError, match=r"cannot read .*train-00000-of-.*; Permission denied"):
        load()


def test_objects_classes_are_not_in_them(load: Callable[..., Split]) -> None:
    with pytest.raises(ConfigError, match="is not for TFRecords of ImageNet"):
        load(label_source="object", classes=["a"])


def test_shards_without_a_record_are_named(sample: SampleData, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none/train-00000-of-00001").write_bytes(b"")
    said = r"TFRecords in .*none hold no train record\n  shards that hold no image \(1, e.g. train-0.*, 0 bytes"
    with pytest.raises(ConfigError, match=said):
        load_split(config_of(sample, tmp_path, "tfrecord", tmp_path / "none").data, "train", World())


def test_a_shard_without_a_record_is_counted(load: Callable[..., Split], records: Path) -> None:
    (records / "train-00003-of-00004").write_bytes(b"")
    assert load().catalog.ledger.counts == {"shards that hold no image": (1, "train-00003-of-00004, 0 bytes")}
