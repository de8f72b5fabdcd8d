"""Packing: what is in the shards, and that they are the same however it was interrupted, on any number of ranks."""

import hashlib
import io
import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.annotations import read_annotation
from tests.support.commands import WARM, run
from tests.support.packs import config_of, packed
from tests.support.sample import SampleData
from tfpipe import Config, World
from tfpipe.config import SourceConfig
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare import pack as module
from tfpipe.prepare.pack import PackPlan, pack, plan_work
from tfpipe.util.locks import locked

# Packs in processes of its own, which are forked from one that has TensorFlow loaded, and kills all but the last: each
# at a random moment after it has begun one more shard.
KILLED = """
import os, pathlib, random, signal, sys, time
from tfpipe import World, load_config
from tfpipe.prepare.pack import PackPlan, pack

path, out, kind, shards, kills = sys.argv[1:]
config, draw, killed = load_config(path).data, random.Random(5), 0
parts = lambda: len([*pathlib.Path(out).glob("*-of-*")])
while True:
    there = parts()
    child = os.fork()
    if child == 0:
        for split in ("train", "test"):
            pack(config, split, pathlib.Path(out), PackPlan(kind, int(shards)), World())
        os._exit(0)
    ended, status = 0, 0
    while not ended and (killed == int(kills) or parts() <= there):
        time.sleep(0.001)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        time.sleep(draw.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        killed += 1
    else:
        assert status == 0, status
        break
print("killed", killed)
"""


def contents(folder: Path) -> dict[str, str]:
    """Every file, also hidden ones, and its sha256."""
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def records(folder: Path, split: str = "train") -> list[dict[str, list]]:
    """The features of all records, as tf.data and tf.train.Example have them."""
    shards = sorted(str(each) for each in folder.glob(f"{split}-*-of-*"))
    found = []
    for data in tf.data.TFRecordDataset(shards).as_numpy_iterator():
        features = tf.train.Example.FromString(data).features.feature
        found.append({name: list(getattr(each, each.WhichOneof("kind")).value) for name, each in features.items()})
    return found


@pytest.fixture
def config(sample: SampleData, index: str, tmp_path: Path) -> Config:
    return config_of(sample, tmp_path, index=index)


@pytest.fixture(scope="module")
def in_shards(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both splits' crops in 12 shards each."""
    folder = tmp_path_factory.mktemp("pack")
    return packed(config_of(sample, folder, index=index), folder / "out", "crops", shards=12)


@pytest.fixture(scope="module")
def kept(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The test data's crops packed, and begun to be."""
    folder = tmp_path_factory.mktemp("kept")
    config = config_of(sample, folder, index=index)
    pack(config.data, "test", folder / "whole", PackPlan("crops"), World())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Work, "finish", lambda _: None)
        pack(config.data, "test", folder / "begun", PackPlan("crops"), World())
    return {True: folder / "whole", False: folder / "begun"}


def test_files_are_in_imagenets_tfrecords_untouched(config: Config, sample: SampleData, tmp_path: Path) -> None:
    catalog = load_split(config.data, "train", World()).catalog
    out = packed(config, tmp_path / "out", "original", shards=4, splits=("train",))
    assert sorted(each.name for each in out.iterdir()) == [
        *(f"train-{shard:05}-of-00004" for shard in range(4)),
        "train.images.parquet",
        "train.json",
        "train.records.parquet",
    ]
    found = {each["image/filename"][0].decode(): each for each in records(out)}
    assert list(found) != sorted(found) and len(found) == len(catalog) == 96
    for item, path in enumerate(catalog.paths):
        features = found[catalog.paths.name(item)]
        height, width = (Image.open(path).height, Image.open(path).width)
        synset = Path(path).parent.name
        expected = {
            "image/encoded": [Path(path).read_bytes()],
            "image/height": [height],
            "image/width": [width],
            "image/format": [b"JPEG"],
            "image/class/synset": [synset.encode()],
            "image/class/label": [catalog.classes.index(synset) + 1],
            "image/class/text": [synset.encode()],
        }
        assert {name: features[name] for name in expected} == expected
        assert features["image/channels"] == [{b"RGB": 3, b"GRAY": 1, b"CMYK": 4}[features["image/colorspace"][0]]]
        edges = np.array([features[f"image/object/bbox/{name}"] for name in ("ymin", "xmin", "ymax", "xmax")]).T
        annotation = catalog.annotation(item)
        boxes = read_annotation(annotation).boxes / [height, width, height, width] if annotation else np.zeros((0, 4))
        np.testing.assert_allclose(edges.reshape(-1, 4), np.clip(boxes, 0, 1), atol=1e-6)
        assert features["image/object/bbox/label"] == features["image/class/label"] * len(boxes)


def test_the_parser_that_readers_of_imagenet_use_takes_them(config: Config, tmp_path: Path) -> None:
    """Uses the features as tf-models-official and DALI declare them."""
    out = packed(config, tmp_path / "out", "original", shards=2, splits=("train",))
    spec = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string, ""),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
        "image/class/text": tf.io.FixedLenFeature([], tf.string, ""),
        **{f"image/object/bbox/{edge}": tf.io.VarLenFeature(tf.float32) for edge in ("xmin", "ymin", "xmax", "ymax")},
        "image/object/bbox/label": tf.io.VarLenFeature(tf.int64),
    }
    for data in tf.data.TFRecordDataset([str(each) for each in out.glob("train-*-of-*")]):
        parsed = tf.io.parse_single_example(data, spec)
        assert 1 <= parsed["image/class/label"] <= 8
        assert tf.io.decode_jpeg(parsed["image/encoded"]).shape[0] > 0


@pytest.mark.parametrize("kind", ["original", "coefficients", "crops", "raw"])
def test_each_record_is_where_its_table_says(config: Config, tmp_path: Path, kind: str) -> None:
    out = packed(config, tmp_path / "out", kind, shards=3, splits=("test",))
    table = pq.read_table(out / "validation.records.parquet").to_pydict()
    shards = [each.read_bytes() for each in sorted(out.glob("validation-*-of-00003*"))]
    parts = [
        shards[shard][offset : offset + length]
        for shard, offset, length in zip(table["shard"], table["offset"], table["length"], strict=True)
    ]
    assert table["image"] == sorted(table["image"])
    if kind == "raw":
        arrays = [np.load(each) for each in sorted(out.glob("*.npy"))]
        assert {each.shape[1:] for each in arrays} == {(32, 32, 3)}
        assert sorted(parts) == sorted(crop.tobytes() for each in arrays for crop in each)
    else:
        assert sorted(parts) == sorted(each["image/encoded"][0] for each in records(out, "validation"))
        start = b"\0tpc" if kind == "coefficients" else b"\xff\xd8"
        assert all(each.startswith(start) for each in parts)


def test_odd_files_are_packed_as_they_are(tmp_path: Path) -> None:
    """PNGs that are named .JPEG, a grey and a CMYK one; a file that is no image is named, and the rest kept."""
    images = tmp_path / "train" / "a"
    images.mkdir(parents=True)
    pixels = Image.effect_noise((40, 30), 50)
    pixels.save(images / "1.JPEG", "PNG")
    pixels.save(images / "2.JPEG", "JPEG")
    pixels.convert("CMYK").save(images / "3.JPEG", "JPEG")
    (images / "4.JPEG").write_bytes(b"no image")
    pixels.convert("LA").save(images / "5.JPEG", "PNG")
    pixels.convert("RGBA").save(images / "6.JPEG", "PNG")
    (tmp_path / "list.txt").write_text("".join(f"train/a/{number}.JPEG\n" for number in (1, 2, 3, 4, 5, 6)))
    data = {"train_filelist": str(tmp_path / "list.txt"), "annotations": "none"}
    config = Config.model_validate_json(json.dumps({"data": data}))
    with pytest.raises(ConfigError, match=r"cannot use .*4\.JPEG: "):
        pack(config.data, "train", tmp_path / "out", PackPlan(shards=4), World())
    pixels.save(images / "4.JPEG", "JPEG")
    pack(config.data, "train", tmp_path / "out", PackPlan(shards=4), World())
    found = {each["image/filename"][0]: each for each in records(tmp_path / "out")}
    said = {
        each: [found[b"%d.JPEG" % each][f"image/{name}"][0] for name in ("format", "colorspace")]
        for each in (1, 2, 3, 5, 6)
    }
    png = {1: [b"PNG", b"GRAY"], 5: [b"PNG", b"GRAY"], 6: [b"PNG", b"RGB"]}
    assert said == {2: [b"JPEG", b"GRAY"], 3: [b"JPEG", b"CMYK"], **png}
    assert found[b"1.JPEG"]["image/encoded"] == [(images / "1.JPEG").read_bytes()]
    assert Image.open(io.BytesIO(found[b"1.JPEG"]["image/encoded"][0])).size == (40, 30)


def test_classes_have_their_words(config: Config, sample: SampleData, tmp_path: Path) -> None:
    words = {line.split()[0]: line.split(maxsplit=1)[1] for line in mapping(sample).read_text().splitlines()}
    data = config.data.model_copy(update={"classes": mapping(sample)})
    pack(data, "test", tmp_path / "out", PackPlan(), World())
    for each in records(tmp_path / "out", "validation"):
        assert each["image/class/text"][0].decode() == words[each["image/class/synset"][0].decode()]


def mapping(sample: SampleData) -> Path:
    return next(sample.root.rglob("LOC_synset_mapping.txt"))


@pytest.mark.parametrize(
    "kind", ["crops", pytest.param("raw", marks=pytest.mark.full("only the writer of a shard differs"))]
)
def test_an_image_that_cannot_be_decoded_is_named(config: Config, tree: Path, tmp_path: Path, kind: str) -> None:
    data = config.data.model_copy(update={"train_filelist": tmp_path / "train.txt", "crop": "center"})
    bad = Path((tmp_path / "train.txt").read_text().splitlines()[50])
    whole = bad.read_bytes()
    bad.write_bytes(whole[:100] + bytes(100) + whole[200:300])
    for on_error in ("skip", "raise", "skip"):  # a pack leaves nothing out, and no image takes another's place
        with pytest.raises(ConfigError, match=f"cannot use {bad}: "):
            pack(data.model_copy(update={"on_error": on_error}), "train", tmp_path / "out", PackPlan(kind, 12), World())
    left = len([*(tmp_path / "out" / ".train.parts").glob("*.parquet")])
    assert left < 12 and not (tmp_path / "out" / "train.json").exists()
    bad.write_bytes(whole)
    done = {each: each.stat().st_mtime_ns for each in (tmp_path / "out").glob("train-*")}
    assert len(done) == left
    assert pack(data, "train", tmp_path / "out", PackPlan(kind, 12), World()).images == 96
    assert {each: each.stat().st_mtime_ns for each in done} == done


def test_what_is_whole_is_not_packed_again(config: Config, tmp_path: Path) -> None:
    made = pack(config.data, "test", tmp_path / "out", PackPlan("crops"), World())
    before = {each: each.stat().st_mtime_ns for each in (tmp_path / "out").iterdir()}
    assert pack(config.data, "test", tmp_path / "out", PackPlan("crops"), World()) == made
    assert {each: each.stat().st_mtime_ns for each in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("begun", [False, True])
def test_an_image_that_was_repaired_is_packed_again_or_told(
    config: Config, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """A pack that was begun writes the image's shard again; a finished one is refused."""
    data = config.data.model_copy(update={"train_filelist": tmp_path / "train.txt", "annotations": "none"})
    paths, out = (tmp_path / "train.txt").read_text().splitlines(), tmp_path / "out"
    plan = PackPlan("original", shards=4)
    with monkeypatch.context() as patch:
        if begun:
            patch.setattr(module.Work, "finish", lambda _: None)
        pack(data, "train", out, plan, World())
    Path(paths[0]).write_bytes(Path(paths[1]).read_bytes())
    if not begun:
        with pytest.raises(ConfigError, match=r"train\.json is finished, and images of 1 of its 4 shards have changed"):
            pack(data, "train", out, plan, World())
        return
    pack(data, "train", out, plan, World())
    repacked = {each["image/filename"][0].decode(): each["image/encoded"][0] for each in records(out)}
    assert repacked[Path(paths[0]).name] == Path(paths[0]).read_bytes()


@pytest.mark.parametrize(
    ("how", "plan", "said"),
    [
        ({"crop_image_size": (32, 40)}, PackPlan("crops"), "data.crop_image_size: [32, 32] there, [32, 40] now"),
        ({}, PackPlan("raw"), 'kind: "crops" there, "raw" now'),
        ({}, PackPlan("crops", 2), "shard count: 1 there, 2 now"),
        ({}, PackPlan("crops", quality=80), 'jpeg: {"quality": 95, "subsampling": "420"} there, {"quality": 80,'),
        ({"test_filelist": "two.txt"}, PackPlan("crops"), "images: 37 there, 2 now; list: "),
    ],
    ids=str,
)
@pytest.mark.parametrize("whole", [True, False])
def test_something_else_is_not_packed_into_the_same_folder(
    config: Config,
    sample: SampleData,
    tmp_path: Path,
    kept: dict[bool, Path],
    how: dict,
    plan: PackPlan,
    said: str,
    whole: bool,
) -> None:
    shutil.copytree(kept[whole], tmp_path / "out")
    if "test_filelist" in how:
        (tmp_path / "two.txt").write_text("".join(sample.val.read_text().splitlines(True)[:2]))
        how = {"test_filelist": tmp_path / "two.txt"}
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match=re.escape(said)):
        pack(config.data.model_copy(update=how), "test", tmp_path / "out", plan, World())
    assert contents(tmp_path / "out") == before


def test_a_pack_with_a_shard_that_is_cut_off_is_not_whole(
    config: Config, tmp_path: Path, kept: dict[bool, Path]
) -> None:
    shutil.copytree(kept[True], tmp_path / "out")
    (shard,) = (tmp_path / "out").glob("validation-*-of-*")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"{shard} has \d+ bytes, its manifest says \d+"):
        pack(config.data, "test", tmp_path / "out", PackPlan("crops"), World())


def test_there_are_no_more_shards_than_images(config: Config, tmp_path: Path) -> None:
    shards = plan_work(config.data, "test", tmp_path, PackPlan("original", 50), World()).shards
    assert [shards.records(shard) for shard in range(len(shards))] == [1] * 37


def test_two_packs_never_write_one_folder(config: Config, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out" / ".lock", "testing"), pytest.raises(ConfigError, match="packing into this folder"):
        pack(config.data, "test", tmp_path / "out", PackPlan(), World())


@pytest.mark.parametrize("kind", ["original", "coefficients", "crops", "raw"])
def test_too_small_a_disk_is_told_before_anything_is_packed(
    config: Config, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space that crops take is known from some of them."""
    made = pack(config.data, "test", tmp_path / "whole", PackPlan(kind), World())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(made.bytes // 2))
    with pytest.raises(ConfigError, match=r"need some .* GB, .* GB are free"):
        pack(config.data, "test", tmp_path / "out", PackPlan(kind), World())
    assert not [*(tmp_path / "out").iterdir()]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(int(1.3 * made.bytes)))
    pack(config.data, "test", tmp_path / "out", PackPlan(kind), World())


def test_another_pack_follows_one_of_which_nothing_was_made(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused for want of room, in the form that the message advises; and stopped before its first shard was whole."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(20_000))
        with pytest.raises(ConfigError, match=r"or a smaller form: --kind crops, or a lower --quality"):
            pack(config.data, "test", tmp_path / "out", PackPlan(), World())
    for plan in (PackPlan("crops", shards=3), PackPlan("crops", quality=50)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module.Work, "_write_shard", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            pack(config.data, "test", tmp_path / "out", plan, World())
    pack(config.data, "test", tmp_path / "out", PackPlan("crops"), World())
    pack(config.data, "test", tmp_path / "fresh", PackPlan("crops"), World())
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("how", "plan", "said"),
    [
        ({"crop": "random_resized"}, PackPlan("crops"), 'data.crop "random_resized" cuts other crops in each epoch'),
        ({"train_filelist": []}, PackPlan(), "data.train_filelist mixes several lists"),
        ({"source": SourceConfig(kind="packed", path=Path("x"))}, PackPlan(), "data.source names packed data"),
    ],
    ids=str,
)
def test_what_cannot_be_packed_is_refused(config: Config, tmp_path: Path, how: dict, plan: PackPlan, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        pack(config.data.model_copy(update=how), "train", tmp_path / "out", plan, World())


def test_a_pack_that_is_killed_goes_on_where_it_was(config: Config, tmp_path: Path, in_shards: Path) -> None:
    """Killed at random moments: what comes out is the same to the byte, and nothing is left over."""
    done = run(*WARM, "-c", KILLED, tmp_path / "config.json", tmp_path / "out", "crops", "12", "5")
    assert done.code == 0, done.err
    assert int(done.out.split()[-1]) >= 1
    assert contents(tmp_path / "out") == contents(in_shards)
