"""`tfpipe check` finds in every kind of source what it finds in filelists, with the same exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.images import encoded, picture, turned
from tests.support.routes import Sample, samples
from tests.support.server import serving
from tests.support.sources import WRITERS, write_config, write_source
from tfpipe.cli import main

CHECK = ["check", "--split", "all", "--processes", "1"]
TRAIN = [sample for sample in samples(15) if sample.boxes][:9]
TEST = [samples(45)[number] for number in (14, 17, 31)]


def flawed() -> tuple[list[Sample], list[Sample]]:
    """Training data of which one image is cut off and two come twice, and test data that has an image of it."""
    train = list(TRAIN)
    train[4] = train[4]._replace(file=train[4].file[:-60])
    train.insert(2, train[1])
    return train, [*TEST, train[8]]


def found_in(kind: str, root: Path, train: list[Sample], test: list[Sample]) -> tuple[int, list[dict[str, Any]]]:
    config = write_config(root / "c.json", write_source(kind, root, train, test))
    code = main([*CHECK, "-c", str(config), "--json", str(root / "found.json")])
    return code, json.loads((root / "found.json").read_text())["lists"]


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {each["code"]: each["count"] for each in found["oddities"] if each["harm"] != "handled"}


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind not in ("crops", "raw")])
def test_damaged_repeated_and_leaked_images_are_found(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (train, test) = found_in(kind, tmp_path, *flawed())
    named = {each["code"]: Path(each["examples"][0]["path"]).stem for each in train["oddities"]}
    expected = {"truncated": 1, "contents in both": 1}
    if kind != "folders":  # which cannot hold a file twice
        expected |= {"listed twice": 1}
    if kind in ("filelist", "csv", "coco"):  # whose splits name the same file
        expected |= {"in both lists": 1}
    assert (code, counts(train)) == (1, expected)
    assert counts(test).get("contents in both") == 1
    if kind != "nameless parquet":
        assert (named["truncated"], named["contents in both"]) == ("007", "011")
    noun = "list" if kind == "filelist" else "data"
    assert f"1 of {train['images']} images of the train {noun} would stop training" in capsys.readouterr().err


def test_shards_may_each_have_an_image_of_one_name(tmp_path: Path) -> None:
    train = list(TRAIN)
    train[8] = train[8]._replace(name=train[6].name)
    code, (found, _) = found_in("tar", tmp_path, train, TEST)
    assert (code, counts(found)) == (0, {})


def test_packed_crops_are_refused_with_the_command_that_checks_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = write_config(tmp_path / "l.json", write_source("filelist", tmp_path, TRAIN))
    assert main(["pack", "-c", str(listed), "--kind", "crops", "--out", str(tmp_path / "p")]) == 0
    source = {"kind": "packed", "path": str(tmp_path / "p")}
    config = write_config(tmp_path / "c.json", {**json.loads(listed.read_text())["data"], "train_filelist": None})
    assert main(["check", "-c", str(config), "--set", f"data.source={json.dumps(source)}"]) == 2
    refusal = capsys.readouterr().err
    assert "holds crops, and check reads whole images" in refusal
    assert main(["pack", "--verify", refusal.split("pack --verify ")[1].split()[0]]) == 0


def test_urls_are_checked_as_files_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HTTP lists no folders, so each XML is asked for; one is damaged, and those of images without boxes are none."""
    train, test = flawed()
    train.append(samples(15)[0])
    with serving(tmp_path) as server:
        data = write_source("filelist", tmp_path, train, test)
        for split in ("train", "test"):
            path = Path(data[f"{split}_filelist"])
            path.write_text(path.read_text().replace(str(tmp_path), server.url))
        (tmp_path / "xmls/bird/001.xml").write_text("<annotation>")
        (tmp_path / "images/dog/013.jpg").unlink()
        config = write_config(tmp_path / "c.json", data)
        out = tmp_path / "found.json"
        assert main([*CHECK, "-c", str(config), "--json", str(out), "--set", "data.remote.retries=0"]) == 1
        found = json.loads(out.read_text())["lists"][0]
        wanted = {"missing": 1, "truncated": 1, "bad xml": 1, "listed twice": 1, "in both lists": 1}
        assert counts(found) == {**wanted, "contents in both": 1}
        assert found["annotated"] == len(train) - 1
        assert {each["code"]: each["count"] for each in found["oddities"]}["no xml"] == 1
        clean = tmp_path / "clean.txt"
        assert main(["check", "-c", str(config), "--fix-list", str(clean), "--processes", "1"]) == 1
    kept = clean.read_text().splitlines()
    assert len(kept) == len(train) - 4 and all(line.startswith(f"{server.url}/images/") for line in kept)


@pytest.mark.parametrize("with_boxes", [True, False])
def test_sizes_that_a_table_states_are_compared_as_xmls_are(with_boxes: bool, tmp_path: Path) -> None:
    """Of the image turned by EXIF, training stops; of another size, boxes are relative to the stated one."""
    files = {"fine": encoded(picture(24, 32)), "larger": encoded(picture(48, 64)), "turned": turned(picture(32, 24))}
    for name, file in files.items():
        (tmp_path / f"{name}.jpg").write_bytes(file)
    images = [{"id": place, "file_name": f"{name}.jpg", "height": 24, "width": 32} for place, name in enumerate(files)]
    boxes = [{"id": place, "image_id": place, "category_id": 1, "bbox": [0, 0, 9, 9]} for place in range(len(files))]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    data = {"source": {"kind": "coco", "path": "x.json"}, "crop_image_size": [32, 32], "batch_size": 1}
    data |= {} if with_boxes else {"annotations": "none"}
    (tmp_path / "c.json").write_text(json.dumps({"data": data}))
    code = main(["check", "-c", str(tmp_path / "c.json"), "--processes", "1", "--json", str(tmp_path / "found.json")])
    (train,) = json.loads((tmp_path / "found.json").read_text())["lists"]
    found = {each["code"]: Path(each["examples"][0]["path"]).stem for each in train["oddities"]}
    expected = {"size turned": "turned", "size differs": "larger"} if with_boxes else {}
    assert (code, found) == (int(with_boxes), expected | {"orientation": "turned"})
