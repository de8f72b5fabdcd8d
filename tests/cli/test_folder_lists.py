"""README's first form, a folder as `train_filelist`: each command works, or is refused with one that does."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.routes import SMALL, samples, write_files
from tests.support.sources import write_config
from tfpipe.cli import main

TRAIN, TEST = samples(9), samples(40)[12::13]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_files(tmp_path, TRAIN, "flowers/train")
    write_files(tmp_path, TEST, "flowers/val")
    (tmp_path / "out").mkdir()
    return write_config(
        tmp_path / "c.json", {**SMALL, "train_filelist": "flowers/train", "test_filelist": "flowers/val"}
    )


def overrides(said: str) -> list[str]:
    """The arguments that a command advises to train with."""
    (advice,) = re.findall("train from it with: (.*)", said)
    return shlex.split(advice)


@pytest.mark.parametrize("command", [["stage"], ["check", "--fix-list"]])
def test_the_advised_arguments_train_on_the_same_images(
    command: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def order(*more: str) -> list[list[str]]:
        assert main(["order", "-c", str(config), *more]) == 0, capsys.readouterr().err
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        return [[*line[:3], *Path(line[3]).parts[-2:]] for line in lines]

    expected = order()
    out = config.parent / "out" / ("copy" if command == ["stage"] else "clean.txt")
    words = [*command, "--out", str(out)] if command == ["stage"] else [*command, str(out), "--processes", "1"]
    assert main([*words, "-c", str(config)]) == 0
    advised = overrides(capsys.readouterr().out)
    assert order(*advised) == expected
    assert main(["check", "-c", str(config), "--processes", "1", *advised]) == 0


def test_a_folder_in_a_known_layout_is_indexed(config: Path) -> None:
    layout = 'data.layout={"images": "images", "annotations": "xmls"}'
    images = write_files(config.parent, TRAIN)
    words = ["--set", layout, "--set", f"data.train_filelist={images}", "--processes", "1"]
    assert main(["index", "-c", str(config), *words]) == 0
    assert list(config.parent.rglob("*.index.parquet"))


def test_a_folder_without_boxes_is_not_staged_with_a_list_that_has_some(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_files(config.parent, TEST, "JPEGImages")
    boxed = config.parent / "val.txt"
    boxed.write_text("".join(f"{images}/{sample.label}/{sample.name}.jpg\n" for sample in TEST))
    words = ["-c", str(config), "--set", f"data.test_filelist={boxed}", "--out", str(config.parent / "out")]
    assert main(["stage", *words]) == 2
    assert "the test data has boxes and the other is a folder without XMLs" in capsys.readouterr().err
    assert main(["stage", *words, "--split", "train"]) == 0
    assert main(["order", "-c", str(config), *overrides(capsys.readouterr().out)]) == 0
