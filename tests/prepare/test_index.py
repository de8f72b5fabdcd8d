"""Building the annotation index: in parts, by any number of processes and ranks, the same bytes; or not at all."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.flawed import FLAWS, OWN, write_tree
from tests.support.images import picture, turned
from tests.support.sample import SampleData
from tests.support.targets import annotation
from tfpipe import World, load_config
from tfpipe.cli import main
from tfpipe.config import Config
from tfpipe.data.annotations.cleaning import LEFT_OUT
from tfpipe.data.catalog.filelist import index_path
from tfpipe.data.catalog.index import STAMPS
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare import index as index_build
from tfpipe.prepare import parts
from tfpipe.prepare.index import build_index, verify_index
from tfpipe.prepare.index_rows import Images, read_rows


def test_any_number_of_processes_gives_the_same_bytes(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "CHUNK", 7)
    files = [build_index(make().data, "train", World(), processes).path.read_bytes() for processes in (1, 2)]
    assert files[0] == files[1]


@pytest.mark.parametrize("label_source", ["directory", "object"])
def test_images_with_objects_that_are_left_out_are_counted(make: Callable[..., Config], label_source: str) -> None:
    by_object = label_source == "object"
    classes = make().data.classes[: -1 if by_object else None]
    config = make(label_source=label_source, classes=classes, annotations="index").data
    odd = build_index(config, "train", World(), processes=1).odd
    catalog = load_split(config, "train", World()).catalog
    kinds = [code for code in LEFT_OUT if code in odd and (by_object or code != "class unknown")]
    assert ("class unknown" in kinds) == by_object
    counts = catalog.ledger.counts
    assert {reason: count for reason, (count, _) in counts.items()} == {
        f"images with {LEFT_OUT[code]}": odd[code] for code in kinds
    }
    assert {path for _, path in counts.values()} <= set(catalog.paths)


def test_a_size_turned_by_exif_is_refused_and_the_xml_named(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(turned(picture(24, 32)))
    (tmp_path / "1.xml").write_text(annotation(("n01", (1, 2, 9, 9)), size=(32, 24)))
    images = Images([f"{tmp_path}/1.jpg"], [f"{tmp_path}/1.xml"], np.zeros(1, np.int32))
    table, (error,) = read_rows(images, {"n01": 0})
    assert table is None and error.startswith(f"{tmp_path}/1.xml: the size stated with the boxes is the image's turned")


def test_what_an_interrupted_build_has_finished_is_not_made_again(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "CHUNK", 10)
    monkeypatch.setattr(parts, "PART", 40)
    config = make().data
    whole = build_index(config, "train", World(), processes=1)
    expected = whole.path.read_bytes()
    assert list(whole.path.parent.iterdir()) == [whole.path]
    whole.path.unlink()
    read, seen = index_build.read_rows, []

    def until(limit: int) -> Callable[..., Any]:
        def read_some(images, classes):
            if len(seen) == limit:
                raise KeyboardInterrupt
            seen.append(images.paths[0])
            return read(images, classes)

        return read_some

    monkeypatch.setattr(index_build, "read_rows", until(6))
    with pytest.raises(KeyboardInterrupt):
        build_index(config, "train", World(), processes=1)
    assert not whole.path.exists()
    monkeypatch.setattr(index_build, "read_rows", until(-1))
    before = len(seen)
    assert build_index(config, "train", World(), processes=1) == whole
    assert len(seen) - before == 10 - 4, "the first part of 40 was done"
    assert whole.path.read_bytes() == expected
    assert list(whole.path.parent.iterdir()) == [whole.path]


def test_a_row_group_is_made_of_several_parts(make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pq.read_table(build_index(make().data, "train", World(), processes=1).path)
    for part, group, groups in ((10, 40, [40, 40, 16]), (40, 40, [40, 40, 16]), (50, 20, [20, 20, 10, 20, 20, 6])):
        monkeypatch.setattr(parts, "PART", part)
        monkeypatch.setattr(index_build, "ROW_GROUP", group)
        made = build_index(make().data, "train", World(), processes=1)
        file = pq.ParquetFile(made.path)
        assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == groups
        assert file.read().equals(rows)


def test_two_lists_of_one_name_share_a_folder(sample: SampleData, tmp_path: Path) -> None:
    lines, paths = sample.train.read_text().splitlines(True), {}
    for name, count in (("one", 20), ("other", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("".join(lines[:count]))
        data = {"index": "indexes", "train_filelist": f"{name}/train.txt", "classes": None}
        paths[name] = load_config(sample.config(tmp_path / f"{name}.json", data=data)).data
        build_index(paths[name], "train", World(), processes=1)
    for name, count in (("one", 20), ("other", 30)):
        must = paths[name].model_copy(update={"annotations": "index"})
        assert len(load_split(must, "train", World()).catalog.boxes.offsets(count)) == count + 1
    assert len(list((tmp_path / "indexes").iterdir())) == 2


def test_old_parts_of_what_the_list_was_before_are_removed(make: Callable[..., Config], tmp_path: Path) -> None:
    """Newer ones may be a job's that no lock reaches."""
    folder = index_path(make().data, make().data.train_filelist).parent
    path = build_index(make().data, "train", World(), processes=1).path
    names = [f"{path.name}.{'0' * 16}.parts", f"{path.name}.{'1' * 16}.parts", f"val.index.parquet.{'0' * 16}.parts"]
    for name in names:
        (folder / name).mkdir()
        if name.endswith("0.parts"):
            os.utime(folder / name, (0, 0))
    build_index(make().data, "train", World(), processes=1)
    assert {each.name for each in folder.iterdir()} == {path.name, *names[1:]}


def test_while_one_is_built_another_build_does_not_begin(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, said = index_build.read_rows, []

    def build_meanwhile(images, classes):
        with pytest.raises(ConfigError) as caught:
            build_index(make(label_source="object", test_label_file=None).data, "train", World(), processes=1)
        said.append(str(caught.value))
        return read(images, classes)

    monkeypatch.setattr(index_build, "read_rows", build_meanwhile)
    made = build_index(make().data, "train", World(), processes=1)
    assert f"process {os.getpid()} on {socket.gethostname()} is building this index already" in said[0]
    assert f"{made.path}.lock" in said[0]
    assert list(made.path.parent.iterdir()) == [made.path], "no lock is left, nor the parts of the other build"


def test_all_that_cannot_be_read_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    config = write_tree(tmp_path)
    (tmp_path / "Annotations" / OWN / "fine.xml").write_text("<annotation><object>")
    (tmp_path / "Annotations" / OWN / "gray.xml").write_text("<annotation><object></object></annotation>")
    (tmp_path / "JPEGImages" / OWN / "cmyk.jpg").write_text("no image")
    (tmp_path / "JPEGImages" / OWN / "plain.jpg").unlink()
    with pytest.raises(ConfigError, match="4 problem") as caught:
        build_index(config.data, "train", World(), processes=1)
    for name in ("fine.xml", "gray.xml", "cmyk.jpg", "plain.jpg"):
        assert name in str(caught.value)
    assert not index_path(config.data, config.data.train_filelist).exists()


def test_no_more_problems_are_named_than_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_ERRORS", 3)
    config = write_tree(tmp_path)
    for path in (tmp_path / "JPEGImages" / OWN).iterdir():
        path.write_text("no image")
    with pytest.raises(ConfigError, match="at least 3 problems") as caught:
        build_index(config.data, "train", World(), processes=1)
    assert str(caught.value).count(".jpg") == 3


def test_a_folder_that_cannot_be_written_is_named(make: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "indexes").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write .*indexes.*data\.index"):
        build_index(make().data, "train", World(), processes=1)


def test_the_command_says_once_what_it_found(
    sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = sample.config(tmp_path / "c.json", data={"index": "."})
    assert main(["index", "-c", str(path), "--split", "all", "--processes", "1"]) == 0
    assert [line.partition(":")[0] for line in caplog.messages] == ["train", "test"]
    train, test = capsys.readouterr().out.splitlines()
    data = load_config(path).data
    assert train.startswith(f"{index_path(data, sample.train)}: 96 images (") and " boxes; " in train
    assert test.startswith(f"{index_path(data, sample.val)}: 37 images (37 annotated), ")


# ---- verifying: every file that is not as it was indexed is named, and nothing else ------------------------------

ALL = f"the files of {len(FLAWS)} images are as they were indexed"


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A config whose index was just made; it is compared in several chunks."""
    monkeypatch.setattr(index_build, "CHUNK", 4)
    verified = write_tree(tmp_path)
    build_index(verified.data, "train", World(), processes=1)
    return verified


def test_each_change_is_named(verified: Config, tmp_path: Path) -> None:
    images, xmls = tmp_path / "JPEGImages" / OWN, tmp_path / "Annotations" / OWN
    assert verify_index(verified.data, "train") == f"{tmp_path}/train.index.parquet: {ALL}"
    (images / "fine.jpg").unlink()
    (images / "gray.jpg").write_bytes(b"another")
    os.utime(images / "cmyk.jpg", ns=(0, 0))
    (xmls / "png.xml").unlink()
    (xmls / "bare.xml").write_text("<annotation/>")
    (xmls / "plain.xml").write_text("<annotation/>")
    with pytest.raises(TfpipeError, match=r"6 files of 16 images .*make it again with: tfpipe index") as caught:
        verify_index(verified.data, "train")
    assert caught.value.exit_code == 1
    found = {line.split()[0]: line.partition(" ")[2] for line in str(caught.value).split("\n  ")[1:]}
    assert {Path(path).name: change.partition(",")[0] for path, change in found.items()} == {
        "fine.jpg": "is missing",
        "gray.jpg": "has 7 bytes",
        "cmyk.jpg": "has another time of change",
        "png.xml": "is missing",
        "bare.xml": "has 13 bytes",
        "plain.xml": "is new",
    }


def test_the_command_has_the_codes(verified: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["index", "-c", str(tmp_path / "c.json"), "--verify"]
    assert main(command) == 0 and capsys.readouterr().out == f"{tmp_path}/train.index.parquet: {ALL}\n"
    (tmp_path / "Annotations" / OWN / "fine.xml").unlink()
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == "" and f"{tmp_path}/Annotations/{OWN}/fine.xml is missing" in err


def test_an_index_that_cannot_be_compared_is_refused(verified: Config, tmp_path: Path) -> None:
    path = tmp_path / "train.index.parquet"
    pq.write_table(pq.read_table(path).drop_columns(list(STAMPS)), path)
    with pytest.raises(ConfigError, match=r"does not hold the sizes and times .*make it again with: tfpipe index"):
        verify_index(verified.data, "train")
    path.unlink()
    with pytest.raises(ConfigError, match=r"there is no index .*make it with: tfpipe index"):
        verify_index(verified.data, "train")


def test_with_a_table_of_boxes_no_xml_is_looked_for(verified: Config, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("ImageId,PredictionString\nfine,n02 1 2 3 4\n")
    data = verified.data.model_copy(update={"train_box_file": tmp_path / "boxes.csv"})
    build_index(data, "train", World(), processes=1)
    assert verify_index(data, "train").endswith(ALL)
