"""A kind of source of the user's own, of 40 lines: everything that filelists can do with pictures works with it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.batches import crops
from tests.support.commands import run_train
from tests.support.sample import TINY
from tfpipe import load_config
from tfpipe.cli import main
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.errors import ConfigError

IMAGES = 48
# By the bytes that are left of a JPEG: how it fails, in reading or in decoding.
CUT = {0: "the file is empty", 20: "a JPEG without a whole header", 700: "Premature end of JPEG file"}


def config_of(folder: Path, epochs: int = 1, data: dict | None = None, **args: object) -> Path:
    """Writes a config of Pictures with these arguments."""
    source = {"kind": "tests.support.dict_source:Pictures", "args": args}
    whole = {
        "data": {"source": source, "crop_image_size": [16, 16], "batch_size": 2, **(data or {})},
        "model": TINY,
        "training": {"epochs": epochs},
    }
    (folder / "c.json").write_text(json.dumps(whole))
    return folder / "c.json"


@pytest.mark.parametrize("kind", ["original", "crops", "raw"])
def test_it_is_packed(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    loose, out = config_of(tmp_path), tmp_path / "packed"
    for split in ("train", "test"):
        pack = ["pack", "-c", str(loose), "--out", str(out), "--kind", kind, "--split", split, "--shards", "3"]
        assert main(pack) == 0
    assert main(["pack", "--verify", str(out)]) == 0
    assert f"{IMAGES} images, {IMAGES if kind == 'original' else 72} records" in capsys.readouterr().out
    data = {"source": {"kind": "packed", "path": str(out)}, "crop_image_size": [16, 16], "batch_size": 2}
    (tmp_path / "p.json").write_text(json.dumps({"data": data}))
    for split in ("train", "test"):
        expected, seen = (crops(load_config(path), split, steps=40) for path in (loose, tmp_path / "p.json"))
        assert [crop[:3] for crop in seen] == [crop[:3] for crop in expected]
        assert (seen == expected) == (kind != "crops")


@pytest.mark.parametrize("left", CUT)
def test_pack_names_a_bad_picture(tmp_path: Path, left: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, cut={"17.jpg": left})
    assert main(["pack", "-c", str(config), "--out", str(tmp_path / "out"), "--kind", "crops"]) == 2
    assert f"cannot use 17.jpg: {CUT[left]}; repair it or take it out of the data" in capsys.readouterr().err


def test_check_finds_the_test_data_in_the_training_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each split of Pictures has the same ones."""
    for split in ("train", "test"):
        assert main(["check", "-c", str(config_of(tmp_path)), "--split", split, "--processes", "1"]) == 0
        said = capsys.readouterr().out
        assert f"{IMAGES} images of tests.support.dict_source:Pictures" in said and "nothing odd" in said
    assert main(["check", "-c", str(config_of(tmp_path)), "--split", "all", "--processes", "1"]) == 1
    assert capsys.readouterr().out.count(f"{IMAGES} contents in both") == 2


def test_check_names_bad_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They lie within one call of the reader, and among good ones."""
    bad = {f"{10 + number}.jpg": left for number, left in enumerate(CUT)}
    config = config_of(tmp_path, cut=bad)
    assert main(["check", "-c", str(config)]) == 1
    out, err = capsys.readouterr()
    assert all(f"1 {code} " in out for code in ("empty", "undecodable", "truncated"))
    for name, left in bad.items():
        assert f"{name}: {CUT[left].removesuffix(' file')}" in out
    assert "3 of 48 images of the train data would stop training" in err and "--fix-list" not in err
    assert main(["check", "-c", str(config), "--fix-list", str(tmp_path / "clean.txt")]) == 2
    assert "--fix-list writes a filelist, and data.source has none" in capsys.readouterr().err


def test_it_is_benched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-c", str(config_of(tmp_path)), "--seconds", "0.3", "--repeats", "1"]) == 0
    said = capsys.readouterr().out
    assert f"{IMAGES} images: filelist and labels" in said and "images_per_second: " in said


@pytest.mark.parametrize("left", CUT)
def test_training_names_a_bad_picture(tmp_path: Path, left: int) -> None:
    failed = run_train("-c", config_of(tmp_path, cut={"17.jpg": left}), "-l", tmp_path / "run")
    assert failed.code == 1, failed.err
    assert f"rank 0: cannot use 17.jpg of the train data: {CUT[left]}; repair it or take it out" in failed.err


def test_training_skips_bad_pictures_and_lists_them(tmp_path: Path) -> None:
    bad = {f"{10 + number}.jpg": left for number, left in enumerate(CUT)}
    config = config_of(tmp_path, data={"on_error": "skip", "max_bad_fraction": 0.2}, epochs=2, cut=bad)
    done = run_train("-c", config, "-l", tmp_path / "run")
    assert done.code == 0, done.err
    lines = (tmp_path / "run/bad_files.txt").read_text().splitlines()[1:]
    assert {tuple(line.split("\t")[-2:]) for line in lines} == {(name, CUT[left]) for name, left in bad.items()}


def test_every_box_may_be_a_sample(tmp_path: Path) -> None:
    by_box = load_config(config_of(tmp_path, data={"unit": "box"}))
    seen = [place[:2] for place in crops(by_box, "train", steps=36)]
    assert [position for position, _ in seen] == list(range(72))


@pytest.mark.parametrize("folders", [[""], [""] * 3])
def test_a_catalog_that_does_not_fit_is_refused_and_no_file_blamed(folders: list[str]) -> None:
    paths, nothing = FileList.of(["a/1.jpg", "b/1.jpg"]), np.zeros(2, np.int32)
    said = rf"has {len(folders)} annotation_folders for 2 images in 2 folders; expected 2; .*len\(paths.folders\)"
    with pytest.raises(ConfigError, match=said):
        Catalog("train", paths, folders, nothing > 0, nothing, ("cat",))
    with pytest.raises(ConfigError, match="has 3 labels for 2 images in 2 folders; expected 2"):
        Catalog("train", paths, ["", ""], nothing > 0, np.zeros(3, np.int32), ("cat",))
