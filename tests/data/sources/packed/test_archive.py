"""Images straight from archives: the same samples as loose files, and damage by name."""

import gzip
import io
import logging
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.support.archives import class_tars, tar_bytes, tree, write_zip
from tests.support.batches import assert_same, batches
from tests.support.routes import CLASSES, SMALL, Sample, as_xml, samples, write_files
from tests.support.targets import annotation
from tests.support.trees import write_below
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.packed import archive as module
from tfpipe.data.sources.packed import archive_boxes
from tfpipe.data.sources.packed.members import Member
from tfpipe.data.sources.packed.scan import rows_of
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

SAMPLES = samples(12)
# Its XML is in each file of boxes, and it is in no archive.
SPARE = samples(2)[1]._replace(name="spare")
OTHERS = [one._replace(name=f"v{one.name}") for one in samples(15)[::5]]


def config_of(path: Path, source: dict | None = None, **data: object):
    return make_config({"data": {**SMALL, "source": {"kind": "archive", "path": str(path), **(source or {})}, **data}})


def split_of(path: Path, split: str = "train", world: World = World(), **keys: object) -> Split:
    return load_split(config_of(path, **keys).data, split, world)


def loose(root: Path) -> Path:
    """The same pictures as class folders."""
    return write_below(root, tree(SAMPLES, "train") | tree(OTHERS, "val"))


KAGGLE = {
    **tree(SAMPLES, "ILSVRC/Data/CLS-LOC/train", "ILSVRC/Annotations/CLS-LOC/train"),
    **tree(OTHERS, "ILSVRC/Data/CLS-LOC/val", "ILSVRC/Annotations/CLS-LOC/val"),
    "ILSVRC/ImageSets/CLS-LOC/train_cls.txt": b"n01/x 1",
}


def written(form: str, root: Path) -> Path:
    """Writes the pictures as archives of a form; returns the path for the config."""
    if form == "tar of tars":
        (root / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(class_tars(SAMPLES)))
        (root / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(tree(OTHERS, ".")))
        (root / "ILSVRC2012_bbox_train_v2.tar.gz").write_bytes(b"\x1f\x8b")
        return root
    if form == "tar of class folders":
        path = root / "pictures.tar"
        path.write_bytes(tar_bytes({**tree(SAMPLES, "./train"), **tree(OTHERS, "./val")}, tarfile.PAX_FORMAT))
        return path
    if form == "class tars":
        for split, chosen in (("train", SAMPLES), ("val", OTHERS)):
            (root / split).mkdir()
            for name, contents in class_tars(chosen).items():
                (root / split / name).write_bytes(contents)
        return root / "train"
    method = zipfile.ZIP_DEFLATED if "deflated" in form else zipfile.ZIP_STORED
    return write_zip(root / "kaggle.zip", KAGGLE, method, large="64" in form)


FORMS = ["tar of tars", "tar of class folders", "class tars", "stored zip64", "deflated zip"]


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_those_of_loose_files(tmp_path: Path, form: str) -> None:
    """Position, label and pixels, on one rank of two; of whole images, which is what class folders give."""
    source = {"test_path": str(tmp_path / "val")} if form == "class tars" else {}
    path = written(form, tmp_path)
    files = make_config(
        {"data": {**SMALL, "crop": "full", "source": {"kind": "folders", "path": str(loose(tmp_path / "loose"))}}}
    )
    archives = config_of(path, source, crop="full")
    world = World(rank=1, size=2)
    for split, count in (("train", 4), ("test", 1)):
        assert_same(*(batches(one, split, count, world) for one in (archives, files)))


@pytest.mark.parametrize("form", ["stored zip64", "deflated zip"])
def test_boxes_are_in_the_archive(tmp_path: Path, form: str) -> None:
    split = split_of(written(form, tmp_path))
    boxes = split.catalog.boxes
    assert [np.count_nonzero(boxes.images == item) for item in range(12)] == [max(len(s.boxes), 1) for s in SAMPLES]
    assert np.allclose(boxes.boxes[boxes.images == 1][0] * [24, 32, 24, 32], [2, 2, 13, 20])
    assert split.catalog.ledger.texts == [".txt (1, e.g. kaggle/ILSVRC/ImageSets/CLS-LOC/train_cls.txt)"]


def test_the_flat_validation_tar_has_its_labels_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "img_train.tar").write_bytes(tar_bytes(class_tars(SAMPLES)))
    (tmp_path / "img_val.tar").write_bytes(tar_bytes({f"{one.name}.jpg": one.file for one in OTHERS}))
    with pytest.raises(ConfigError, match=r"set data\.test_label_file"):
        split_of(tmp_path, "test")
    table = tmp_path / "LOC_val_solution.csv"
    table.write_text("ImageId,PredictionString\n" + "".join(f"{one.name},{one.label} 1 2 3 4\n" for one in OTHERS))
    split = split_of(tmp_path, "test", test_label_file=str(table))
    assert [split.catalog.classes[label] for label in split.catalog.labels] == [one.label for one in OTHERS]


def box_file(form: str, folder: Path, chosen: list[Sample]) -> str:
    """Writes the boxes of pictures as a file next to the archives."""
    xmls = {f"./{one.label}/{one.name}.xml": as_xml(one).encode() for one in [*chosen, SPARE] if one.boxes}
    if form == "table":
        boxes = {one.name: [" ".join(map(str, (one.label, *box))) for box in one.boxes] for one in chosen if one.boxes}
        rows = [f"{name},{' '.join(texts)}" for name, texts in boxes.items()]
        (folder / "LOC_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows, ""]))
        return str(folder / "LOC_solution.csv")
    if form == "tar.gz of tar files":
        xmls = {f"{label}.tar": tar_bytes({n: x for n, x in xmls.items() if label in n}) for label in CLASSES}
    path = folder / ("bbox_v2.tar" if form == "tar" else "ILSVRC2012_bbox_v2.tar.gz")
    path.write_bytes(tar_bytes(xmls) if form == "tar" else gzip.compress(tar_bytes(xmls)))
    return str(path)


@pytest.mark.parametrize("forms", [("tar.gz", "tar"), ("table", "tar.gz of tar files")])
def test_boxes_next_to_the_archive_are_those_of_loose_files(tmp_path: Path, forms: tuple[str, str]) -> None:
    """The crops of training on one rank of two, and of a flat validation tar, with classes from a list of names."""
    (tmp_path / "img_train.tar").write_bytes(tar_bytes(class_tars(SAMPLES)))
    (tmp_path / "img_val.tar").write_bytes(tar_bytes({f"{one.name}.jpg": one.file for one in OTHERS}))
    synsets = tmp_path / "imagenet_2012_validation_synset_labels.txt"
    synsets.write_text("".join(f"{one.label}\n" for one in OTHERS))
    folders = {split: tmp_path / split for split in ("train", "test")}
    keys, lists = {"test_label_file": str(synsets)}, {}
    for (split, folder), chosen, form in zip(folders.items(), (SAMPLES, OTHERS), forms, strict=True):
        folder.mkdir()
        keys[f"{split}_box_file"] = box_file(form, folder, chosen)
        lists[f"{split}_filelist"] = str(write_files(folder, chosen))
    files = make_config({"data": {**SMALL, **lists, "layout": {"images": "images", "annotations": "xmls"}}})
    archives, world = config_of(tmp_path, test_crop="boxes", **keys), World(rank=1, size=2)
    for split in folders:
        assert_same(*(batches(one, split, 4, world) for one in (archives, files)))


def test_a_file_of_boxes_is_read_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, parse = [], archive_boxes.parse
    monkeypatch.setattr(archive_boxes, "parse", lambda *a, **k: read.append(1) or parse(*a, **k))
    caplog.set_level(logging.INFO)
    (tmp_path / "img_train.tar").write_bytes(tar_bytes(class_tars(SAMPLES)))
    file = box_file("tar.gz", tmp_path, SAMPLES)
    for _ in range(2):
        catalog = split_of(tmp_path, train_box_file=file).catalog
    assert len(read) == 1 and catalog.annotated.tolist() == [bool(one.boxes) for one in SAMPLES]
    assert "1 of 9 XMLs are of images that are not in the list" in caplog.text
    box_file("tar.gz", tmp_path, SAMPLES[:6])
    assert np.count_nonzero(split_of(tmp_path, train_box_file=file).catalog.annotated) == 4 and len(read) == 2
    assert split_of(tmp_path, train_box_file=file, crop="full").catalog.annotated.sum() == 0


def test_an_xml_is_of_the_image_whose_folders_are_most_alike(tmp_path: Path) -> None:
    members = {f"Data/{folder}/1.jpg": SAMPLES[0].file for folder in ("test/cat", "train/cat", "train/dog", "val/cat")}
    members |= {"Annotations/train/cat/1.xml": as_xml(SAMPLES[1]).encode()}
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    rows = module.scan_archive(tmp_path / "a.tar", (tmp_path / "a.tar").stat().st_size, Ledger())
    assert [rows.names[image] for image in rows.box_images.tolist()] == ["a/Data/train/cat/1.jpg"]


def test_the_boxes_of_a_file_are_in_the_order_of_the_images_with_their_sizes(tmp_path: Path) -> None:
    """Its XMLs have another order, one is of no image, and one image has none."""
    xmls = {"2": ("dog", 20, 40), "spare": ("cat", 9, 9), "0": ("cat", 30, 60)}
    texts = {
        f"{stem}.xml": annotation((label, (1, 2, 3, 4)), size=(height, width)).encode()
        for stem, (label, height, width) in xmls.items()
    }
    (tmp_path / "b.tar").write_bytes(tar_bytes(texts))
    images = rows_of(tmp_path, [Member(f"x/{number}.jpg", 0, 0) for number in range(3)], [None] * 3, [])
    found = archive_boxes.read_xmls(tmp_path / "b.tar", images)
    assert (found.box_images.tolist(), list(map(found.box_labels.text, range(2)))) == ([0, 2], ["cat", "dog"])
    assert found.annotated.tolist() == [True, False, True]
    assert found.sizes.tolist() == [[30, 60], [1, 1], [20, 40]]


def test_a_file_of_boxes_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "img_train.tar").write_bytes(tar_bytes(class_tars(SAMPLES)))
    path, xml = tmp_path / "boxes.tar.gz", as_xml(SAMPLES[1]).encode()
    whole = tar_bytes({f"{number}/001.xml": xml for number in range(2)})
    packed, plain = gzip.compress(whole), gzip.compress(whole[: whole.index(b"1/001")])
    for contents, message in (
        (packed, "holds several XMLs of img_train/bird/001.jpg"),
        (packed[: len(packed) // 2], "ended before the end-of-stream marker.*copy it again"),
        (packed[:-6] + bytes(6), "CRC check failed.*copy it again"),
        (plain, "without the zeros that end a tar file; copy it again"),
        (b"no gzip", "[Nn]ot a gzipped file.*copy it again"),
        (gzip.compress(tar_bytes({"001.xml": b"<x"})), r"001\.xml is not XML"),
        (gzip.compress(tar_bytes({"001.txt": b""})), "holds no XML; accepted"),
        (None, "No such file"),
    ):
        path.unlink(missing_ok=True)
        if contents is not None:
            path.write_bytes(contents)
        with pytest.raises(ConfigError, match=rf"(?s){path}.*{message}"):
            split_of(tmp_path, train_box_file=str(path))


def test_a_scan_is_made_once_for_both_splits_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned, scan = [], module.scan_archive
    monkeypatch.setattr(module, "scan_archive", lambda path, *a, **k: scanned.append(path.name) or scan(path, *a, **k))
    path = written("stored zip64", tmp_path)
    for _ in range(2):
        assert open_source(config_of(path).data).has_test()
        assert [len(split_of(path, split).catalog) for split in ("train", "test")] == [12, 3]
    assert scanned == ["kaggle.zip"]
    write_zip(path, {name: file for name, file in KAGGLE.items() if "/000." not in name})
    assert len(split_of(path).catalog) == 11 and len(scanned) == 2


def test_a_tar_that_is_cut_off_anywhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    whole = tar_bytes(class_tars(SAMPLES[:3] + SAMPLES[-3:]))
    path = tmp_path / "train.tar"
    end = len(whole.rstrip(b"\0"))
    for length in (0, 100, 512, 700, 1536, 3000, len(whole) // 2, end - 1, end, -(-end // 512) * 512):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=rf"{path}.*(ends at byte|no tar|zeros).*copy it again"):
            split_of(tmp_path)


@pytest.mark.parametrize("where", ["outer", "inner"])
def test_a_damaged_header_is_named_by_its_byte(tmp_path: Path, where: str) -> None:
    whole = bytearray(tar_bytes(class_tars(SAMPLES)))
    at = whole.index(b"cat.tar") if where == "outer" else whole.index(b"005.jpg")
    for byte in (0, 124, 130, 135, 156):
        path = tmp_path / "train.tar"
        path.write_bytes(whole[: at + byte] + bytes([whole[at + byte] ^ 0x41]) + whole[at + byte + 1 :])
        within = "cat.tar within it: " if where == "inner" else ""
        with pytest.raises(ConfigError, match=f"{within}the header at byte {at} is damaged, and all"):
            split_of(tmp_path)


def test_a_zip_that_is_cut_off_or_damaged_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = written("deflated zip", tmp_path)
    whole = path.read_bytes()
    for length in (0, 10, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=rf"{path}: it is no zip file, was cut off"):
            split_of(path)
    path.write_bytes(whole.replace(b"PK\x03\x04", b"PK\x03\x05", 1))
    with pytest.raises(ConfigError, match=rf"{path}: the header of ILSVRC.*000.jpg at byte 0 is damaged"):
        split_of(path)
    # The contents of the first image are damaged: reading it says so.
    at = whole.index(b"000.jpg") + 300
    path.write_bytes(whole[:at] + bytes(40) + whole[at + 40 :])
    split = split_of(path)
    with pytest.raises(ValueError, match=r"cannot inflate|checksum"):
        split.image(0)
    assert split.image(1) == SAMPLES[1].file


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.zip"
    write_zip(path, tree(SAMPLES, "."), zipfile.ZIP_BZIP2)
    with pytest.raises(
        ConfigError, match=rf"{path}: \./bird/000.jpg is compressed by bzip2; accepted: stored and defl"
    ):
        split_of(path)
    write_zip(path, tree(SAMPLES, "."))
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match=rf"{path}: \./bird/000.jpg is encrypted"):
        split_of(path)
    for name in ("train.tar.gz", "train.tgz"):
        (tmp_path / name).write_bytes(b"\x1f\x8b")
        with pytest.raises(ConfigError, match=rf"{tmp_path / name} is compressed.*gzip -dk"):
            split_of(tmp_path / name)
    (tmp_path / "outer.tar").write_bytes(tar_bytes({"ILSVRC_BBOX_train.tar.gz": b"", "bird.tar.gz": b"\x1f\x8b"}))
    with pytest.raises(ConfigError, match=r"outer/bird\.tar\.gz within it is compressed: unpack it"):
        split_of(tmp_path / "outer.tar")


def test_two_files_of_one_name_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train.tar"
    path.write_bytes(tar_bytes([("a/1.jpg", SAMPLES[0].file), ("b/1.jpg", b"x"), ("a/1.jpg", SAMPLES[1].file)]))
    with pytest.raises(ConfigError, match=r"two files are named train/a/1\.jpg"):
        split_of(path)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_odd_names_and_other_members(tmp_path: Path, form: int) -> None:
    """Long names, names in other letters, with spaces; a hard link is its image; links and other files are left out."""
    odd = "naïve 猫'\"%20" if form != tarfile.USTAR_FORMAT else "naive '%20"
    names = [f"{odd}/1.jpg", f"{'d' * 90}/{'n' * 90}.JPEG", "z/._1.jpg", "z/read.me", "z/2.png"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name in ("z", "z/link.jpg", "z/hard.jpg"):
            member = tarfile.TarInfo(name)
            member.type = {"z": tarfile.DIRTYPE, "z/link.jpg": tarfile.SYMTYPE}.get(name, tarfile.LNKTYPE)
            member.linkname = {"z/link.jpg": "2.png", "z/hard.jpg": "z/2.png"}.get(name, "")
            tar.addfile(member)
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(SAMPLES[0].file)
            tar.addfile(member, io.BytesIO(SAMPLES[0].file))
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"")
    catalog = split_of(tmp_path).catalog
    assert sorted(catalog.paths) == sorted(f"a/{name}" for name in (names[0], names[1], names[4], "z/hard.jpg"))
    assert set(catalog.ledger.texts) == {
        "links (1, e.g. z/link.jpg)",
        "names that begin with a dot (1, e.g. a/z/._1.jpg)",
        ".me (1, e.g. a/z/read.me)",
        "archives of no images by their names (1, e.g. ILSVRC2012_devkit_t12.tar.gz)",
    }


def test_archives_whose_classes_lie_at_other_levels_are_refused(tmp_path: Path) -> None:
    """As one that was made of a folder, and one from within another: the first one's folder is no class."""
    names = {"flowers/rose/1.jpg": "one", "flowers/tulip/2.jpg": "one", "rose/3.jpg": "two", "tulip/4.jpg": "two"}
    for part in ("one", "two"):
        members = {name: sample.file for (name, of), sample in zip(names.items(), SAMPLES, strict=False) if of == part}
        write_zip(tmp_path / f"{part}.zip", members)
    with pytest.raises(ConfigError, match=r"of two/ .* level 1, .* of one/ of level 2, .*flowers/.*data\.class_level"):
        split_of(tmp_path)
    assert split_of(tmp_path, class_level=-1).catalog.classes == ("rose", "tulip")
