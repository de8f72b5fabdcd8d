"""`tfpipe check`: what is odd is counted and named, the exit code says if it matters, the fixed list is clean."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.oddities import EXPECTED, TRAIN, good, write_tree
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.cli import main
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.tools.check import split as package
from tfpipe.tools.check.result import KINDS
from tfpipe.tools.check.split import check


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_tree(tmp_path)


def by_code(found: dict[str, Any]) -> dict[str, list[str]]:
    return {each["code"]: [Path(example["path"]).stem for example in each["examples"]] for each in found["oddities"]}


def test_each_oddity_is_counted_and_the_first_five_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = config.parent / "found.json"
    assert main(["check", "-c", str(config), "--json", str(out), "--processes", "1"]) == 1
    said = capsys.readouterr()
    (found,) = json.loads(out.read_text())["lists"]
    assert by_code(found) == {code: names[:5] for code, names in EXPECTED.items()}
    assert {each["code"]: each["count"] for each in found["oddities"]} == {
        code: len(names) for code, names in EXPECTED.items()
    }
    assert (found["images"], found["annotated"]) == (len(TRAIN) + 2, 5)
    assert found["images_of_class"] == {"n01": 8, "n02": 6, "n03": 0}
    reasons = {each["code"]: each["examples"][0]["reason"] for each in found["oddities"]}
    assert reasons["no image"] == "it is gzip-compressed" and "Premature end" in reasons["truncated"]
    assert reasons["unknown label"] == '"n04" (its folder)' and reasons["bad xml"].startswith(
        str(config.parent / "Annotations/n02/bad.xml")
    )
    # A screen of text, and what is to be done.
    lines = said.out.splitlines()
    assert len(lines) < 60 and max(len(line) for line in lines if str(config.parent) not in line) <= 120
    assert "1 of them without an image: n03" in said.out
    assert all(KINDS[code].meaning.split()[0] in said.out and code in said.out for code in EXPECTED)
    assert said.err.splitlines()[-1] == (
        "tfpipe: error: 6 of 15 images of the train list would stop training; 3 of 15 images of the train list are "
        "wrong; --fix-list OUT writes a list without what stops training"
    )


def test_the_fixed_list_keeps_the_order_and_has_nothing_that_stops_training(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed, given = config.parent / "fixed.txt", config.parent / "train.txt"
    given.write_text(given.read_text(), encoding="utf-8-sig")
    assert main(["check", "-c", str(config), "--fix-list", str(fixed), "--processes", "1"]) == 1
    assert f"{fixed}: 8 lines, 7 left out" in capsys.readouterr().out
    kept = ["n01/fine", "n01/plain", "n01/inks", "n02/turned", "n02/utf16", "n02/named", "n02/copy", "n02/wide"]
    assert fixed.read_text().splitlines() == [f"JPEGImages/{name}.jpg" for name in kept]
    # Elsewhere, lines relative to the list would lead nowhere.
    elsewhere = config.parent / "lists" / "fixed.txt"
    again = ["check", "-c", str(config), "--set", f"data.train_filelist={fixed}", "--set", "data.test_filelist=null"]
    assert main([*again, "--fix-list", str(elsewhere), "--processes", "1"]) == 0
    assert list(read_filelist(elsewhere)) == list(read_filelist(fixed))
    assert main(["order", "-c", str(config), "--set", f"data.train_filelist={elsewhere}"]) == 0


def test_what_training_does_not_read_does_not_count(config: Path) -> None:
    data = load_config(config, ["data.annotations=none"]).data
    (found,) = check(data, ["train"], World(), processes=1)
    assert not {oddity.code for oddity in found.oddities} & {"bad xml", "no xml", "file name"}


def test_contents_that_are_in_both_lists_are_found_under_any_name(config: Path) -> None:
    folder = config.parent
    (folder / "JPEGImages/n01/test.jpg").write_bytes(good(11))
    train, test = check(load_config(config).data, ["train", "test"], World(), processes=1)
    names = [
        {oddity.code: [Path(example["path"]).stem for example in oddity.examples] for oddity in each.oddities}
        for each in (train, test)
    ]
    assert names[0]["contents in both"] == ["fine", "copy", "wide"] and names[1]["contents in both"] == ["test", "fine"]
    assert names[0]["in both lists"] == names[1]["in both lists"] == ["fine"]


def test_a_clean_list_has_code_0(sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    config = str(sample.config(tmp_path / "c.json"))
    weights = ["--set", "model.name=ConvNeXtTiny", "--set", "model.weights=imagenet"]
    assert main(["check", "-c", config, "--split", "all", "--json", str(out), "--processes", "1", *weights]) == 0
    found = json.loads(out.read_text())
    assert found["clean"] and [each["images"] for each in found["lists"]] == [96, 37]
    assert all(each["harm"] == "handled" for of in found["lists"] for each in of["oddities"])
    printed = capsys.readouterr()
    assert printed.err == "" and "by Pillow's BICUBIC, and data.resize is" in printed.out.splitlines()[-1]


def test_a_pack_that_is_not_there_has_code_2(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["data.train_filelist=null", "data.test_filelist=null", 'data.source={"kind": "packed", "path": "x"}']
    assert main(["check", "-c", str(config), *(word for each in sets for word in ("--set", each))]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_boxes_of_a_table_are_checked_in_the_xmls_place(config: Path) -> None:
    table = config.parent / "boxes.csv"
    table.write_text("ImageId,PredictionString\nwide,n02 5 5 900 20 \nfine,n01 1 1 9 9 \n")
    lines = (config.parent / "train.txt").read_text().splitlines()
    (config.parent / "train.txt").write_text("\n".join(line for line in lines[:-4] if "n04" not in line))
    data = load_config(config, [f"data.train_box_file={table}"]).data
    (found,) = check(data, ["train"], World(), processes=1)
    codes = {oddity.code: oddity.count for oddity in found.oddities}
    assert "bad xml" not in codes and "no xml" not in codes
    assert codes.get("missing") == 1


def test_any_number_of_processes_finds_the_same(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_config(config).data
    (whole,) = check(data, ["train"], World(), processes=1)
    monkeypatch.setattr(package, "IMAGES_PER_TASK", 4)
    (parts,) = check(data, ["train"], World(), processes=2)
    assert parts.oddities == whole.oddities and (parts.digests == whole.digests).all()
    assert (parts.bytes, parts.classes) == (whole.bytes, whole.classes)
