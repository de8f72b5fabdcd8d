"""Verifying an index: every file that is not as it was indexed is named, and nothing else."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.flawed import FLAWS, OWN, write_tree
from tfpipe import World
from tfpipe.cli import main
from tfpipe.config import Config
from tfpipe.data.catalog.index import STAMPS
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare import index_verify
from tfpipe.prepare.index import build_index
from tfpipe.prepare.index_verify import verify_index

ALL = f"the files of all {len(FLAWS)} images are as they were indexed"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A config whose index was just made; it is compared in several chunks."""
    monkeypatch.setattr(index_verify, "CHUNK", 4)
    config = write_tree(tmp_path)
    build_index(config.data, "train", World(), processes=1)
    return config


def test_each_change_is_named(config: Config, tmp_path: Path) -> None:
    images, xmls = tmp_path / "JPEGImages" / OWN, tmp_path / "Annotations" / OWN
    assert verify_index(config.data, "train") == f"{tmp_path}/train.index.parquet: {ALL}"
    (images / "fine.jpg").unlink()
    (images / "gray.jpg").write_bytes(b"another")
    os.utime(images / "cmyk.jpg", ns=(0, 0))
    (xmls / "png.xml").unlink()
    (xmls / "bare.xml").write_text("<annotation/>")
    (xmls / "plain.xml").write_text("<annotation/>")
    with pytest.raises(TfpipeError, match=r"6 files of 15 images .*make it again with: tfpipe index") as caught:
        verify_index(config.data, "train")
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


def test_the_command_has_the_codes(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["index", "-c", str(tmp_path / "c.json"), "--verify"]
    assert main(command) == 0 and capsys.readouterr().out == f"{tmp_path}/train.index.parquet: {ALL}\n"
    (tmp_path / "Annotations" / OWN / "fine.xml").unlink()
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == "" and f"{tmp_path}/Annotations/{OWN}/fine.xml is missing" in err


def test_an_index_that_cannot_be_compared_is_refused(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "train.index.parquet"
    pq.write_table(pq.read_table(path).drop_columns(list(STAMPS)), path)
    with pytest.raises(ConfigError, match=r"does not hold the sizes and times .*make it again with: tfpipe index"):
        verify_index(config.data, "train")
    path.unlink()
    with pytest.raises(ConfigError, match=r"there is no index .*make it with: tfpipe index"):
        verify_index(config.data, "train")


def test_with_a_table_of_boxes_no_xml_is_looked_for(config: Config, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("ImageId,PredictionString\nfine,n02 1 2 3 4\n")
    data = config.data.model_copy(update={"train_box_file": tmp_path / "boxes.csv"})
    build_index(data, "train", World(), processes=1)
    assert verify_index(data, "train").endswith(ALL)
