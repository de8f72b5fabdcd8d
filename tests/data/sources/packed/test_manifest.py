"""Training from packed data: the same samples as from the files, and what it cannot serve refused."""

import builtins
import errno
import io
import json
import os
import re
import shutil
import tempfile
import time
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.batches import KNOWN_STEPS, crops, known_crops
from tests.support.commands import WARM, run
from tests.support.examples import examples
from tests.support.images import decoded, encoded, of_jfif_2
from tests.support.packs import config_of, packed
from tests.support.ranks import Ranks
from tests.support.sample import SampleData
from tfpipe import Cursor, Stream, World, build_dataset
from tfpipe.config import make_config
from tfpipe.data.annotations.cleaning import Boxes
from tfpipe.data.catalog import table
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.sources.packed import manifest
from tfpipe.data.sources.packed.manifest import verify
from tfpipe.data.sources.packed.pixels import loader
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.data.sources.packed.source import PackedSplit
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.training.checkpointing.checkpoints import contract_of
from tfpipe.util.files import sha256

KINDS = ("original", "crops", "raw")


@pytest.fixture(scope="module")
def folders(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("packed")
    config = config_of(sample, base, index=index)
    return {kind: packed(config, base / kind, kind) for kind in KINDS}


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Packed data that may be spoilt."""
    return {kind: shutil.copytree(folder, tmp_path / kind) for kind, folder in folders.items()}


def levels_apart(some: list[tuple], others: list[tuple]) -> float:
    one, other = (np.frombuffer(b"".join(each[3] for each in those), np.uint8).astype(int) for those in (some, others))
    return float(np.abs(one - other).mean())


def as_stored(crop: tuple, shape: tuple[int, ...]) -> tuple:
    """A crop of [height, width, channels] as its JPEG of quality 95 gives it, in half the colours' resolution."""
    pixels = np.frombuffer(crop[3], np.uint8).reshape(shape).squeeze()
    jpeg = encoded(Image.fromarray(pixels), quality=95, subsampling="4:2:0")
    return *crop[:3], np.asarray(Image.open(io.BytesIO(jpeg))).tobytes()


def assert_alike(got: list[tuple], expected: list[tuple], kind: str, shape: tuple[int, ...] = (32, 32, 3)) -> None:
    """The same samples; crops are what their JPEGs give, but for the rounding of those that are mirrored after it."""
    assert [each[:3] for each in got] == [each[:3] for each in expected]
    if kind == "crops":
        assert levels_apart(got, [as_stored(crop, shape) for crop in expected]) < 1 < levels_apart(got, expected)
    else:
        assert got == expected


BY_BOX = {"unit": "box", "flip": True}, World(1, 2)
SHARDED = {"scope": "shard", "flip": True, "batch_size": 7}, World(2, 3)
SHARDED_BY_BOX = {"unit": "box", "scope": "shard"}, World(1, 3)
IN_ORDER = {"shuffle_buffer": 0, "num_parallel_readers": 1}, World()


@pytest.mark.parametrize(
    ("kind", "way"),
    [("original", BY_BOX), ("raw", BY_BOX), ("crops", SHARDED), ("raw", SHARDED_BY_BOX), ("crops", IN_ORDER)],
    ids=str,
)
def test_the_samples_are_those_of_the_files(
    sample: SampleData, index: str, tmp_path: Path, folders: dict[str, Path], kind: str, way: tuple[dict, World]
) -> None:
    """Over two epochs."""
    how, world = way
    expected = known_crops(config_of(sample, tmp_path, index=index, **how), "train", world)
    got = crops(config_of(sample, tmp_path, "packed", folders[kind], **how), "train", world, KNOWN_STEPS)
    assert_alike(got, expected, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_large_tables_are_mapped_and_give_the_same(
    sample: SampleData, tmp_path: Path, copy: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Made once, and again if the folder was packed again; nothing is written next to small ones."""
    config = config_of(sample, tmp_path, "packed", copy[kind])
    expected = crops(config, "train", World(), 4)
    files = sorted(copy[kind].iterdir())
    held = load_split(config.data, "train", World()).catalog
    assert sorted(copy[kind].iterdir()) == files
    monkeypatch.setattr(table, "SMALL_BYTES", 0)
    for _ in range(2):
        assert crops(config, "train", World(), 4) == expected
        monkeypatch.setattr(manifest, "_read_table", None)
    mapped = load_split(config.data, "train", World()).catalog
    assert isinstance(mapped.paths.names, np.ndarray) and mapped.paths.digest == held.paths.digest
    assert list(mapped.paths) == list(held.paths)
    monkeypatch.undo()
    monkeypatch.setattr(table, "SMALL_BYTES", 0)
    path = copy[kind] / "train.json"
    about = json.loads(path.read_text())
    images = copy[kind] / about["tables"][0]["name"]
    pq.write_table(pq.read_table(images), images, compression="none")
    about["tables"][0] |= {"bytes": images.stat().st_size, "sha256": sha256(images)}
    path.write_text(json.dumps(about))
    load_split(config.data, "train", World())
    assert len(list(copy[kind].glob("train.catalog/packed-*"))) == 2


@pytest.mark.parametrize(
    ("how", "split"),
    [
        ({"crop": "random_resized", "unit": "box", "crop_image_size": [24, 40]}, "train"),
        ({"crop": "center", "num_channels": 1, "decoder": "graph"}, "test"),
        ({"annotations": "none", "dtype": "float32", "crop_image_size": [8, 9]}, "train"),
    ],
    ids=str,
)
def test_original_files_are_cropped_in_any_way(
    sample: SampleData, index: str, tmp_path: Path, folders: dict[str, Path], how: dict, split: str
) -> None:
    loose = config_of(sample, tmp_path, index=index, **how)
    config = config_of(sample, tmp_path, "packed", folders["original"], **how)
    assert crops(config, split, World(1, 2), 8) == crops(loose, split, World(1, 2), 8)
    counts = [count_crops(load_split(each.data, "train", World())) for each in (loose, config)]
    assert counts[0] == counts[1]


GRAY = {"test_crop": "center", "num_channels": 1, "resize": "area", "crop_image_size": [20, 36]}
BY_OBJECT = {"label_source": "object", "classes": "two", "test_label_file": None}


@pytest.mark.parametrize(
    ("kind", "how", "split"), [("crops", GRAY, "test"), ("raw", BY_OBJECT, "train"), ("raw", GRAY, "train")], ids=str
)
def test_crops_are_packed_as_the_config_cuts_them(
    sample: SampleData, index: str, tmp_path: Path, how: dict, kind: str, split: str
) -> None:
    how = {**how, "classes": sample.classes[:2]} if "classes" in how else {**how, "index": index}
    loose = config_of(sample, tmp_path, **how)
    config = config_of(sample, tmp_path, "packed", packed(loose, tmp_path / "out", kind, 3, (split,)), **how)
    steps = 10 if split == "train" else -1
    shape = (*config.data.crop_image_size, config.data.num_channels)
    assert_alike(crops(config, split, steps=steps), crops(loose, split, steps=steps), kind, shape)


@pytest.mark.parametrize(
    ("kind", "world"), [("crops", World()), ("original", World(2, 3)), ("raw", World(1, 3)), ("crops", World(0, 3))]
)
def test_a_test_pass_is_that_of_the_files(
    sample: SampleData, index: str, tmp_path: Path, folders: dict[str, Path], kind: str, world: World
) -> None:
    whole = known_crops(config_of(sample, tmp_path, index=index), "test")
    expected = [each for each in whole if each[0] % world.size == world.rank]
    got = crops(config_of(sample, tmp_path, "packed", folders[kind]), "test", world)
    assert_alike(got, expected, kind)


@pytest.mark.parametrize("kind", ["original", "raw"])
def test_a_run_begun_on_files_goes_on_packed(
    sample: SampleData, index: str, tmp_path: Path, folders: dict[str, Path], kind: str
) -> None:
    """In the middle of an image of several crops, and with other ranks."""
    loose, config = config_of(sample, tmp_path, index=index), config_of(sample, tmp_path, "packed", folders[kind])
    whole = known_crops(loose, "train", World(1, 2))
    taken = next(number for number, each in enumerate(whole) if number > 40 and each[1] > 0)
    on_its_way = Stream.start(2).at([Cursor(0), Cursor(*whole[taken][:2])])
    assert_alike(crops(config, "train", World(1, 2), 6, resume=on_its_way), whole[taken : taken + 96], kind)
    fewer = Stream.start(3).at([Cursor(9, 1), Cursor(4), Cursor(17)]).over(2)
    expected = crops(loose, "train", World(1, 2), 6, resume=fewer)
    assert_alike(crops(config, "train", World(1, 2), 6, resume=fewer), expected, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_tells_crops_as_jpeg_from_the_files(
    sample: SampleData, index: str, tmp_path: Path, folders: dict[str, Path], kind: str
) -> None:
    configs = config_of(sample, tmp_path, index=index), config_of(sample, tmp_path, "packed", folders[kind])
    contracts = [contract_of(each, load_split(each.data, "train", World())) for each in configs]
    different = {name for name in contracts[0] if contracts[0][name] != contracts[1][name]}
    # A layout is not compared if the boxes are known, which are the same.
    assert different - {"layout"} == ({"crops as JPEG"} if kind == "crops" else set())


@settings(max_examples=examples(12))
@given(st.data())
def test_each_crop_is_fetched_exactly_where_the_stream_has_it(data: st.DataObject) -> None:
    """Holds for any ranks, batches, crops and interruptions; each crop's pixel is its number."""
    scope = data.draw(st.sampled_from(["global", "shard"]))
    by_box = data.draw(st.booleans())
    counts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=40).filter(any)))
    size = data.draw(st.integers(1, 3))
    if scope == "shard":
        counts += counts == 0
    with tempfile.TemporaryDirectory() as folder:
        split = numbered(counts, Path(folder), by_box)
        size = min(size, split.catalog.samples)
        how = {"crop_image_size": [1, 1], "batch_size": data.draw(st.integers(1, 9)), "scope": scope}
        config = make_config({"data": {"source": {"kind": "packed", "path": folder}, **how}})
        split = replace(split, config=config.data)
        order = split.order
        per_sample = np.ones(split.catalog.samples, int) if by_box else counts
        stream = Stream.start(size)
        steps = data.draw(st.integers(0, 6))
        ran = Ranks(stream, order, per_sample, config.data.batch_size)
        stream = ran.interrupted(ran.steps(steps))
        if scope == "global":
            stream = stream.over(data.draw(st.integers(1, 3)))
        rank = data.draw(st.integers(0, stream.size - 1))
        expected = Ranks(stream, order, per_sample, config.data.batch_size).steps(5)[rank]
        dataset = build_dataset(config, "train", World(rank, stream.size), True, stream, split)
        batches = list(dataset.take(5).as_numpy_iterator())
        places = [tuple(map(int, place)) for _, _, positions in batches for place in positions]
        assert places == expected
        first = np.append(0, np.cumsum(per_sample))
        items = order.items(np.array([position for position, _ in places]), World(rank, stream.size))
        numbers = [int.from_bytes(pixels.tobytes(), "little") for images, _, _ in batches for pixels in images]
        assert numbers == [first[item] + crop for item, (_, crop) in zip(items, places, strict=True)]
        assert [int(label) for _, labels, _ in batches for label in labels] == [number % 7 for number in numbers]


def numbered(counts: np.ndarray, folder: Path, by_box: bool) -> Split:
    """Training data of images with so many raw crops, of one pixel that is their number, in two shards."""
    total = int(counts.sum())
    pixels = np.arange(total, dtype="<u4").view(np.uint8).reshape(-1, 4)[:, :3].reshape(-1, 1, 1, 3)
    half = total // 2
    for shard, part in enumerate((pixels[:half], pixels[half:])):
        (folder / str(shard)).write_bytes(b"-" + part.tobytes())
    number = np.arange(total)
    images = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    labels = (number % 7).astype(np.int32)
    shards = (number >= half).astype(np.int32)
    offsets = 1 + 3 * (number - half * shards)
    records = Records(images, labels, shards, offsets, np.full(total, 3))
    paths = FileList.of(f"{item}.jpg" for item in range(len(counts)))
    boxes = Boxes(images, np.zeros((total, 4), np.float32), labels)
    whose = np.zeros(len(counts), np.int32)
    where = Shards("raw", [str(folder / "0"), str(folder / "1")], records)
    data = {"source": {"kind": "packed", "path": str(folder)}}
    catalog = Catalog("train", paths, [""], whose > 0, whose, tuple("abcdefg"), boxes, by_box=by_box)
    return PackedSplit(make_config({"data": data}).data, catalog, World(), where)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"crop_image_size": [32, 33]}, "data.crop_image_size: [32, 32] packed, [32, 33] in the config"),
        ({"num_channels": 1}, "data.num_channels: 3 packed, 1 in the config"),
        ({"crop": "random_resized"}, 'data.crop: "boxes" packed, "random_resized" in the config'),
        ({"crop": "full"}, 'data.crop: "boxes" packed, "full" in the config'),
        ({"resize": "area"}, 'data.resize: "bilinear" packed, "area" in the config'),
        ({"decoder": "graph"}, 'data.decoder: "native" packed, "graph" in the config'),
        ({"annotations": "none"}, 'data.annotations: "any" packed, "none" in the config'),
        ({"classes": ["a", "b"]}, 'data.classes: ["n'),
        ({"cache": "memory"}, "data.cache is of loose files"),
        ({"num_classes": 3}, "data.num_classes is 3, but there are 8 classes"),
    ],
    ids=str,
)
def test_what_packed_crops_cannot_serve_is_refused(
    sample: SampleData, tmp_path: Path, folders: dict[str, Path], how: dict, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        build_dataset(config_of(sample, tmp_path, "packed", folders["raw"], **how))


@pytest.mark.parametrize("spelt", ["NFC", "NFD"])
def test_classes_packed_in_either_unicode_form_are_those_of_the_config(
    sample: SampleData, tmp_path: Path, copy: dict[str, Path], spelt: str
) -> None:
    path = copy["original"] / "train.json"
    about = json.loads(path.read_text())
    names = ["café", *about["classes"][1:]]
    path.write_text(json.dumps({**about, "classes": [unicodedata.normalize(spelt, name) for name in names]}))
    for form in ("NFC", "NFD"):
        classes = [unicodedata.normalize(form, name) for name in names]
        config = config_of(sample, tmp_path, "packed", copy["original"], classes=classes)
        assert load_split(config.data, "train", World()).catalog.classes == tuple(names)


def test_a_split_that_is_not_packed_is_named(sample: SampleData, tmp_path: Path, copy: dict[str, Path]) -> None:
    (copy["raw"] / "validation.json").unlink()
    config = config_of(sample, tmp_path, "packed", copy["raw"])
    with pytest.raises(ConfigError, match=r"validation\.json: No such file"):
        build_dataset(config, "test")
    build_dataset(config)


def test_a_copy_that_may_lack_images_is_refused(sample: SampleData, tmp_path: Path, copy: dict[str, Path]) -> None:
    """`tfpipe stage` once copied parts of shards, and left this note."""
    (copy["raw"] / ".train.staged.json").write_text("{}")
    with pytest.raises(
        ConfigError, match=r"was copied by an earlier version, maybe in part, says .*: remove it and stage"
    ):
        build_dataset(config_of(sample, tmp_path, "packed", copy["raw"]))


@pytest.mark.parametrize("kind", KINDS)
def test_shards_that_are_not_whole_are_named(
    sample: SampleData, tmp_path: Path, copy: dict[str, Path], kind: str
) -> None:
    config = config_of(sample, tmp_path, "packed", copy[kind])
    shard = min(copy[kind].glob("train-00003*"))
    contents = shard.read_bytes()
    shard.write_bytes(contents[:-1])
    with pytest.raises(ConfigError, match=rf"{shard} has {len(contents) - 1} bytes, its manifest says {len(contents)}"):
        build_dataset(config)
    shard.unlink()
    with pytest.raises(ConfigError, match=f"cannot read {shard}"):
        build_dataset(config)


@pytest.mark.parametrize("kind", ["original", "crops"])
def test_a_damaged_record_is_named(sample: SampleData, tmp_path: Path, copy: dict[str, Path], kind: str) -> None:
    """With its shard, its number there, and the file that it was."""
    assert verify(copy[kind]) == f"{copy[kind]}: 14 files as packed"
    config = config_of(sample, tmp_path, "packed", copy[kind], shuffle_buffer=0)
    split = load_split(config.data, "train", World())
    records = split.shards.records
    bad = 40
    shard = Path(split.shards.paths[records.shard[bad]])
    contents = bytearray(shard.read_bytes())
    begin = int(records.offset[bad])
    contents[begin : begin + int(records.length[bad])] = bytes(int(records.length[bad]))
    shard.write_bytes(contents)
    number = sorted(records.offset[records.shard == records.shard[bad]].tolist()).index(begin)
    with pytest.raises(tf.errors.OpError) as raised:
        crops(config, "train", steps=12)
    said = str(to_named_error(raised.value, split, Stream.start(1), None))
    assert f"record {number} of {shard}, of {split.catalog.paths[int(records.image[bad])]}" in said
    assert "tfpipe pack --verify" in said and "Traceback" not in said
    with pytest.raises(ConfigError, match=f"1 of 14 files are not as packed:\n  {shard} is not what was packed"):
        verify(copy[kind])


def test_a_shard_that_is_cut_while_it_is_read_is_named(
    sample: SampleData, tmp_path: Path, copy: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is where memory does not hold them all; where it does, the same records are mapped."""
    for kind in ("raw", "crops"):
        config = config_of(sample, tmp_path, "packed", copy[kind])
        split = load_split(config.data, "train", World())
        shards = split.shards
        mapped = loader(shards, split.catalog.paths, (32, 32, 3))(np.arange(20), np.zeros(0, bool))
        with monkeypatch.context() as small:
            small.setattr("tfpipe.data.sources.packed.pixels.free_memory", lambda: 0)
            load = loader(shards, split.catalog.paths, (32, 32, 3))
        whole = load(np.arange(20), np.zeros(0, bool))
        assert whole.tobytes() == mapped.tobytes()
        contents = [split.shards.contents(record) for record in range(20)]
        expected = contents if kind == "raw" else [decoded(each).tobytes() for each in contents]
        assert whole.tobytes() == b"".join(expected)
        last = int(np.argmax(split.shards.records.offset * (split.shards.records.shard == 2)))
        Path(split.shards.paths[2]).write_bytes(Path(split.shards.paths[2]).read_bytes()[:-600])
        with pytest.raises(ValueError, match=r"record \d+ of .*train-00002-of-00005.*: the shard ends within it"):
            load(np.array([0, last]), np.zeros(0, bool))
        with pytest.raises(TfpipeError, match=r"record \d+ of .*train-00002-of-00005.*: the shard ends within it"):
            loader(shards, split.catalog.paths, (32, 32, 3))


@pytest.mark.parametrize("memory", [0, 2**40], ids=["read", "mapped"])
def test_crops_that_the_decoder_in_c_refuses_are_decoded_all_the_same(
    sample: SampleData, tmp_path: Path, copy: dict[str, Path], monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """JPEGs of which libjpeg warns among others; mirrored ones of both kinds."""
    monkeypatch.setattr("tfpipe.data.sources.packed.pixels.free_memory", lambda: memory)
    split = load_split(config_of(sample, tmp_path, "packed", copy["crops"]).data, "train", World())
    shards = split.shards
    contents = [shards.contents(record) for record in range(4)]
    for record in (1, 2):
        other = of_jfif_2(encoded(Image.open(io.BytesIO(contents[record])), quality=30))
        contents[record] = other.ljust(len(contents[record]), b"\0")
        with open(shards.paths[shards.records.shard[record]], "r+b") as file:
            file.seek(shards.records.offset[record])
            file.write(contents[record])
    expected = np.array([decoded(each) for each in contents])
    flips = np.array([True, True, False, False])
    load = loader(shards, split.catalog.paths, (32, 32, 3))
    assert (load(np.arange(4), flips) == np.where(flips[:, None, None, None], expected[:, :, ::-1], expected)).all()
    assert (load(np.arange(4), np.zeros(0, bool)) == expected).all()


def test_a_shard_that_cannot_be_mapped_for_a_while_is_tried_again_and_one_for_ever_is_named(
    sample: SampleData, tmp_path: Path, copy: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    split = load_split(config_of(sample, tmp_path, "packed", copy["raw"]).data, "train", World())
    shards, failures, pauses = split.shards, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))], []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(builtins, "open", lambda *args, open=open: open(*args) if not failures else fail(failures))
    assert loader(shards, split.catalog.paths, (32, 32, 3))(np.arange(20), np.zeros(0, bool)).any() and pauses == [1]
    Path(shards.paths[1]).unlink()
    with pytest.raises(TfpipeError, match=f"cannot read {shards.paths[1]}: No such file or directory"):
        loader(shards, split.catalog.paths, (32, 32, 3))


def fail(failures: list[OSError]) -> None:
    raise failures.pop()


def test_a_packed_split_holds_the_paths_it_was_made_of(
    sample: SampleData, tmp_path: Path, folders: dict[str, Path]
) -> None:
    for split in ("train", "test"):
        loose = load_split(config_of(sample, tmp_path).data, split, World()).catalog
        for kind in KINDS:
            catalog = load_split(config_of(sample, tmp_path, "packed", folders[kind]).data, split, World()).catalog
            assert catalog.paths == loose.paths and catalog.paths.digest == loose.paths.digest
            assert catalog.classes == loose.classes and np.array_equal(catalog.labels, loose.labels)
            assert np.array_equal(catalog.annotated, loose.annotated)


def test_crops_are_the_jpegs_that_the_manifest_says(folders: dict[str, Path]) -> None:
    manifest = json.loads((folders["crops"] / "train.json").read_text())
    assert manifest["jpeg"] == {"quality": 95, "subsampling": "420"}
    assert manifest["data.crop_image_size"] == [32, 32] and len(manifest["shards"]) == 5
    shards = [folders["crops"] / each["name"] for each in manifest["shards"]]
    count = sum(1 for _ in tf.data.TFRecordDataset([str(each) for each in shards]))
    assert count == sum(each["records"] for each in manifest["shards"])
    example = tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(str(shards[0])))).numpy())
    jpeg = example.features.feature["image/encoded"].bytes_list.value[0]
    image = Image.open(io.BytesIO(jpeg))
    assert image.size == (32, 32) and [layer[1:3] for layer in image.layer] == [(2, 2), (1, 1), (1, 1)]


READ = """
import hashlib, os, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from tfpipe.data.sources.packed.manifest import _read_table

table, path = pa.table({"shard": pa.array([1, 2], pa.int32())}), Path(sys.argv[1])
pq.write_table(table, path)
before = len(os.listdir("/proc/self/task"))
about = {"records": 2, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
assert _read_table(path, about, table.schema) == table
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_no_thread_of_arrows_holds_pythons_bytes(tmp_path: Path) -> None:
    """One that frees them as the process ends aborts it: apache/arrow#34314, #45017."""
    done = run(*WARM, "-c", READ, tmp_path / "t.parquet")
    assert (done.code, done.out) == (0, "0\n"), done.err
