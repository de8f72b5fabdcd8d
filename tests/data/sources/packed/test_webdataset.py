"""WebDataset's tar shards: labels and boxes next to the images, scanned once, and damage by name."""

import io
import json
import logging
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.flaky import fail_once
from tests.support.routes import CLASSES, HEIGHT, SMALL, WIDTH, samples, tar_bytes, write_tars
from tfpipe import World
from tfpipe.cli import main
from tfpipe.config import make_config
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.packed import members
from tfpipe.data.sources.packed import webdataset as module
from tfpipe.data.sources.packed.webdataset import json_column
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.errors import ConfigError

SAMPLES = samples(12)


def split_of(folder: Path, split: str = "train", world: World = World(), source: dict | None = None, **data: object):
    source = {"kind": "webdataset", "path": str(folder), **(source or {})}
    return load_split(make_config({"data": {**SMALL, "source": source, **data}}).data, split, world)


def catalog_of(folder: Path, split: str = "train", world: World = World(), **keys: object) -> Catalog:
    return split_of(folder, split, world, **keys).catalog


def write(path: Path, **members: bytes) -> Path:
    """Writes a tar of these members; two underscores stand for a dot."""
    path.write_bytes(tar_bytes({name.replace("__", "."): contents for name, contents in members.items()}))
    return path


def test_labels_and_boxes_are_beside_the_images(tmp_path: Path) -> None:
    write_tars(tmp_path, SAMPLES, notes="cls and xml")
    split = split_of(tmp_path, classes=list(CLASSES))
    catalog = split.catalog
    assert list(catalog.paths) == [f"{sample.label}/{sample.name}.jpg" for sample in SAMPLES]
    assert [split.image(item) for item in range(12)] == [sample.file for sample in SAMPLES]
    assert [catalog.classes[label] for label in catalog.labels] == [sample.label for sample in SAMPLES]
    edges = [box for sample in SAMPLES for box in sample.boxes or [[0, 0, WIDTH, HEIGHT]]]
    wanted = np.array(edges)[:, [1, 0, 3, 2]] / [HEIGHT, WIDTH, HEIGHT, WIDTH]
    assert np.allclose(catalog.boxes.boxes, wanted)


@pytest.mark.parametrize(("where", "name"), [(module, "open_file"), (members, "_check_end")])
def test_an_error_that_may_pass_costs_a_scan_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: Any, name: str
) -> None:
    """At the beginning of a shard, and after its last sample: what is left out is counted once."""
    write(tmp_path / "train-0.tar", a__jpg=SAMPLES[0].file, a__cls=b"x", a__txt=b"note")
    pauses = fail_once(monkeypatch, where, name)
    catalog = catalog_of(tmp_path)
    assert (list(catalog.paths), pauses) == (["a.jpg"], [1])
    assert catalog.ledger.texts == [".txt (1, e.g. a.txt)"]
    assert "train-0.tar" in caplog.text or name == "_check_end"


def test_so_it_does_when_a_stored_scan_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tars(tmp_path, SAMPLES)
    catalog_of(tmp_path)
    monkeypatch.setattr(module, "scan_tar", lambda *_: pytest.fail("scanned again"))
    pauses = fail_once(monkeypatch, np, "load")
    assert (len(catalog_of(tmp_path)), pauses) == (12, [1])


def test_shards_are_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned, scan = [], module.scan_tar
    monkeypatch.setattr(module, "scan_tar", lambda path, *how: scanned.append(path.name) or scan(path, *how))
    write_tars(tmp_path, SAMPLES)
    for _ in range(2):
        assert len(catalog_of(tmp_path)) == 12
    assert sorted(scanned) == [f"train-{shard:04}.tar" for shard in range(3)]
    write_tars(tmp_path, SAMPLES[:7])
    assert len(catalog_of(tmp_path)) == 7 and len(scanned) == 6


def test_changed_contents_or_columns_are_scanned_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def labels(**columns: str) -> list[str]:
        catalog = catalog_of(tmp_path, source={"columns": columns})
        return [catalog.classes[label] for label in catalog.labels]

    caplog.set_level(logging.WARNING)
    notes = {"label": "cat", "breed": "dog", "boxes": [[0, 0, 1, 1]]}
    write(tmp_path / "a.tar", a__jpg=SAMPLES[0].file, a__json=json.dumps(notes).encode())
    assert labels() == ["cat"]
    assert labels(label="breed") == ["dog"]
    assert 'data.source.columns.label: "label" then, "breed" now; it is made again' in caplog.text
    caplog.clear()
    assert labels(label="breed") == ["dog"] and not caplog.text
    size = (tmp_path / "a.tar").stat().st_size
    write(tmp_path / "a.tar", a__jpg=SAMPLES[0].file, a__json=json.dumps({**notes, "breed": "fox"}).encode())
    assert (tmp_path / "a.tar").stat().st_size == size
    assert labels(label="breed") == ["fox"]
    assert "out of date: a.tar has changed since, by its time of change" in caplog.text
    caplog.clear()
    assert labels() == ["cat"]
    assert labels(label="breed") == ["fox"] and caplog.text.count("out of date") == 1, "both settings' scans are kept"


def test_a_scan_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    """With what to do: each start would scan all shards again."""
    write_tars(tmp_path, SAMPLES)
    (tmp_path / "train.catalog").write_text("a file, in which nothing can be written")
    with pytest.raises(ConfigError, match=r"cannot write .*train\.catalog.*; set data\.index to a folder that can be"):
        catalog_of(tmp_path)


def test_shards_are_split_by_the_words_in_their_names(tmp_path: Path) -> None:
    for name, chosen in (("shard-0", SAMPLES), ("Test-0", SAMPLES[:5])):
        (write_tars(tmp_path / "made", chosen, shards=1) / "train-0000.tar").rename(tmp_path / f"{name}.tar")
    assert [len(catalog_of(tmp_path, split)) for split in ("train", "test")] == [12, 5]
    (tmp_path / "shard-0.tar").unlink()
    with pytest.raises(ConfigError, match=r"no train shard in .*Names with the word train, .* data\.source\.test_path"):
        catalog_of(tmp_path)


def test_shards_of_no_split_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tars(tmp_path, SAMPLES)
    write(tmp_path / "more.tar", x__jpg=b"x")
    catalog = catalog_of(tmp_path)
    assert len(catalog) == 12 and catalog.ledger.texts == [f"files of no split (1, e.g. {tmp_path}/more.tar)"]
    assert caplog.text.count(": left out are\n  files of no split (1") == 1
    (tmp_path / "more.tar").rename(tmp_path / "train-val-1.tar")
    with pytest.raises(ConfigError, match=r"train-val-1\.tar may be training data or test data"):
        open_source(make_config({"data": {"source": {"kind": "webdataset", "path": str(tmp_path)}}}).data).has_test()


def test_without_test_shards_there_is_no_test_pass(tmp_path: Path) -> None:
    source = {"kind": "webdataset", "path": str(write_tars(tmp_path, SAMPLES))}
    plain = open_source(make_config({"data": {"source": source}}).data)
    assert not plain.has_test()
    plain.check(test=True)
    with pytest.raises(ConfigError, match="no test shard in"):
        catalog_of(tmp_path, "test")
    elsewhere = {"source": {**source, "test_path": str(tmp_path / "nowhere")}}
    with pytest.raises(ConfigError, match=r"no test shard in .*nowhere"):
        open_source(make_config({"data": elsewhere}).data).check(test=True)


def test_boxes_may_lack_a_size_or_be_relative(tmp_path: Path) -> None:
    file = SAMPLES[0].file
    pixels, relative = ({"label": 1, "boxes": [box]} for box in ([8, 6, 16, 24], [0.25, 0.25, 0.5, 1]))
    write(tmp_path / "a.tar", a__jpg=file, a__json=json.dumps(pixels).encode(), b__jpg=file,
          b__json=json.dumps(relative).encode())  # fmt: skip
    assert np.allclose(catalog_of(tmp_path / "a.tar").boxes.boxes, [[0.25, 0.25, 1, 0.5]] * 2)


def test_boxes_of_a_json_are_kept_next_to_the_label_of_a_cls_or_tags(tmp_path: Path) -> None:
    """A .json without a label, or with null, has none to replace that of the .cls; tags are no label, and no boxes."""
    box: dict[str, Any] = {"boxes": [[0, 0, 0.5, 1]], "box_labels": ["cat"]}
    notes = [box, {**box, "label": None}, {**box, "label": ["dog", "fox"]}]
    members = {f"{number}__cls": b"cat" for number in range(3)}
    members |= {f"{number}__json": json.dumps(note).encode() for number, note in enumerate(notes)}
    members |= {f"{number}__jpg": SAMPLES[0].file for number in range(3)}
    catalog = catalog_of(write(tmp_path / "t.tar", **dict(sorted(members.items()))))
    assert (catalog.classes, catalog.labels.tolist()) == (("cat",), [0, 0, 0])
    assert catalog.boxes.boxes.tolist() == [[0, 0, 1, 0.5]] * 3


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"a__jpg": b"x"}, r"has no labels"),
        ({"a__jpg": b"x", "a__json": b"{"}, r"t\.tar: a\.json: Expecting"),
        ({"a__jpg": b"x", "a__json": b"[]"}, r"t\.tar: a\.json: 'list' object"),
        ({"a__jpg": b"x", "a__json": b'{"label": ["\\ud800"]}'}, r"t\.tar: a\.json: .*surrogates not allowed"),
        ({"a__jpg": b"x", "a__xml": b"<a/>"}, r"t\.tar: .*a\.xml"),
        ({"a__txt": b"x"}, r"hold no image with a name that ends in \.jpeg"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, members: dict[str, bytes], problem: str) -> None:
    write(tmp_path / "t.tar", **members)
    with pytest.raises(ConfigError, match=problem):
        catalog_of(tmp_path)


def test_members_that_are_not_used_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = SAMPLES[0].file
    members = {"a__jpg": picture, "a__seg__png": picture, "a__cls": b"1", "b__psd": b"8BPS", "b__cls": b"0"}
    write(tmp_path / "t.tar", **members, c__JPG=picture, c__xcf=picture, c__txt=b"text", c__cls=b"0", __DS_Store=b"")
    with tarfile.open(tmp_path / "t.tar", "a") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("d.jpg" if kind == tarfile.SYMTYPE else "e.jpg")
            link.type, link.linkname = kind, "a.jpg"
            tar.addfile(link)
        label = tarfile.TarInfo("e.cls")
        label.size = 1
        tar.addfile(label, io.BytesIO(b"0"))
    # A hard link is the image that it links to.
    kinds = [".psd (1, e.g. b.psd)", ".seg.png (1, e.g. a.seg.png)", ".txt (1, e.g. c.txt)", ".xcf (1, e.g. c.xcf)"]
    kinds += ["links (1, e.g. d.jpg)", "names that begin with a dot (1, e.g. .DS_Store)"]
    kinds += ["samples without an image (1, e.g. b)"]
    for _ in range(2):  # the second time from the stored scan
        caplog.clear()
        catalog = catalog_of(tmp_path)
        assert (list(catalog.paths), catalog.labels.tolist()) == (["a.jpg", "c.JPG", "e.jpg"], [1, 0, 0])
        assert ": left out are\n  " + "\n  ".join([*kinds[:6], "and 1 other reason"]) in caplog.text
    (tmp_path / "c.json").write_text(
        json.dumps({"data": {**SMALL, "source": {"kind": "webdataset", "path": str(tmp_path)}}})
    )
    assert main(["check", "-c", str(tmp_path / "c.json"), "--json", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    assert all(f"not used: {kind}" in printed for kind in kinds) and "nothing odd" not in printed
    assert json.loads((tmp_path / "found.json").read_text())["lists"][0]["not_used"] == kinds


def test_of_several_images_in_a_sample_the_config_names_one(tmp_path: Path) -> None:
    one, other = SAMPLES[0].file, SAMPLES[1].file
    write(tmp_path / "t.tar", a__png=other, a__JPG=one, a__left__jpg=other, a__cls=b"x", b__jpg=one, b__cls=b"x")
    with pytest.raises(
        ConfigError, match=r"t\.tar: the sample a has several images, \.png and \.jpg: set data\.source"
    ):
        catalog_of(tmp_path)
    for ending, names, images in (
        ("jpg", ["a.JPG", "b.jpg"], [one, one]),
        ("png", ["a.png"], [other]),
        ("Left.jpg", ["a.left.jpg"], [other]),
    ):
        split = split_of(tmp_path, source={"columns": {"bytes": ending}})
        assert [*split.catalog.paths] == names
        assert [split.image(item) for item in range(len(names))] == images
        counted = sum(count for count, _ in split.catalog.ledger.counts.values())
        assert counted == 6 - 2 * len(names), "each other image, and b for its label"


def test_samples_of_one_name_in_a_row_have_their_own_labels(tmp_path: Path) -> None:
    one, other = SAMPLES[0].file, SAMPLES[1].file

    def add(*members: tuple[str, bytes]) -> None:
        (tmp_path / "t.tar").write_bytes(tar_bytes(members))

    add(("a.cls", b"0"), ("a.jpg", one), ("a.cls", b"1"), ("a.jpg", other))
    split = split_of(tmp_path)
    assert split.catalog.labels.tolist() == [0, 1]
    assert [split.image(item) for item in range(2)] == [one, other]
    add(("n/a.jpg", one), ("n/a.cls", b"0"), ("n/a.json", b"{}"), ("n/a.jpg", other), ("n/a.cls", b"1"))
    with pytest.raises(ConfigError, match=r"t\.tar: several samples in a row are named n/a, .* a name of its own"):
        catalog_of(tmp_path)


def test_check_names_a_shard_that_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a member's end, where tarfile sees no error; and no short scan is stored."""
    shard = write(tmp_path / "t.tar", a__jpg=SAMPLES[0].file, a__cls=b"0", b__jpg=SAMPLES[1].file, b__cls=b"1")
    with tarfile.open(shard) as tar:
        end = tar.getmember("b.jpg").offset
    shard.write_bytes(shard.read_bytes()[:end])
    data = {**SMALL, "source": {"kind": "webdataset", "path": str(tmp_path)}}
    (tmp_path / "c.json").write_text(json.dumps({"data": data}))
    assert main(["check", "-c", str(tmp_path / "c.json")]) == 2
    assert f"{shard}: it was cut off: it ends at byte {end}, without the zeros" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "t.tar"]


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([3, -(2**62)], np.array([3, -(2**62)], np.int64)),
        ([True, False], np.array([1, 0], np.int64)),
        ([3, None], np.array([3, np.nan], np.float32)),
        ([3, 0.5], np.array([3, 0.5], np.float32)),
        ([0.5, 2**64], np.array([0.5, 2**64], np.float32)),
        ([None, [1, 2], [3, 4]], np.array([[np.nan, np.nan], [1, 2], [3, 4]], np.float32)),
        ([[1], [2]], np.array([[1], [2]], np.int64)),
        (["a", None, "c\nd"], np.array(["a", "", "c\nd"], object)),
    ],
)
def test_a_column_has_the_type_of_its_values(values: list[Any], column: np.ndarray) -> None:
    made = json_column(values, "age", str)
    assert made.dtype == column.dtype and made.shape == column.shape
    assert all(
        one == other or (one != one and other != other) for one, other in zip(made.flat, column.flat, strict=True)
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([3, None, "three"], 'image 2: its .json has "three" as "age", a column of data.source.columns.extra; '
         "accepted: a number, as in image 0"),
        ([[1, 2], [1, 2, 3]], "image 1: its .json has [1, 2, 3] as "),
        ([None, {"a": 1}], 'image 1: its .json has {"a": 1} as "age", a column of data.source.columns.extra; accepted: '
         "a number, a list of numbers or a text"),
        ([[]], "image 0: its .json has [] as "),
        ([1, 10**400], "image 1: its .json has 1000"),
        ([1, 2**64], "image 1: its .json has 18446744073709551616 as \"age\"; accepted: whole numbers up to 2^24"),
        ([None, [1, 2**24 + 1]], "image 1: its .json has [1, 16777217] as \"age\"; accepted: whole numbers up to 2^24"),
        ([["a"]], 'image 0: its .json has ["a"] as '),
        ([None, None], 'no image has the key "age" in its .json, e.g. image 0'),
        ([], 'no image with the key "age"'),
    ],
)  # fmt: skip
def test_values_of_two_kinds_are_refused(values: list[Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        json_column(values, "age", lambda item: f"image {item}")


def test_a_dot_names_a_key_within_another_as_in_tables(tmp_path: Path) -> None:
    note = {"objects": {"bbox": [[0, 0, 0.5, 0.5]], "names": ["b"]}, "meta": {"class": "a"}, "a.b": 1}
    write(tmp_path / "t.tar", x__jpg=SAMPLES[0].file, x__json=json.dumps(note).encode())
    columns = {"boxes": "objects.bbox", "box_labels": "objects.names", "label": "meta.class"}
    catalog = catalog_of(tmp_path, source={"columns": columns})
    assert catalog.annotated.all() and catalog.boxes.boxes.tolist() == [[0, 0, 0.5, 0.5]]
    assert catalog.classes == ("a",)
