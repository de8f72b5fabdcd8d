"""Checks of data with targets other than one class: what would stop training is found, and nothing else is odd."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.scenes import CLASSES, make_scenes
from tfpipe import World, make_config
from tfpipe.config import DataConfig
from tfpipe.tools.check.result import conclusion, render
from tfpipe.tools.check.split import check

LAYOUT = {"images": "JPEGImages", "annotations": "Masks"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_scenes(tmp_path / "scenes", 12)
    return tmp_path / "scenes"


def data_of(root: Path, *, table: bool, **data: Any) -> DataConfig:
    listed = {"train_filelist": str(root / "train.txt"), "classes": list(CLASSES)}
    source = {"kind": "table", "path": str(root / "train.jsonl"), "columns": data.pop("columns", {})}
    return make_config({"data": ({"source": source} if table else listed) | data}).data


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("crop", ["full", "random_resized"])
def test_bad_masks_stop_training_and_are_named(root: Path, table: bool, crop: str) -> None:
    targets = {"kind": "mask"} | ({} if table else {"masks": LAYOUT})
    data = data_of(root, table=table, targets=targets, crop=crop)
    (found,) = check(data, ["train"], World())
    assert conclusion([found]) is None and "class unknown" not in render([found])
    (root / "Masks/003.png").write_bytes((root / "Masks/003.png").read_bytes()[:60])
    (root / "Masks/005.png").write_bytes((root / "Masks/006.png").read_bytes())
    (root / "Masks/007.png").unlink()
    (root / "JPEGImages/009.jpg").write_bytes(b"")
    damaged = (root / "JPEGImages/010.jpg").read_bytes()
    (root / "JPEGImages/010.jpg").write_bytes(damaged[:700] + bytes(8) + damaged[708:])
    (root / "Masks/010.png").unlink()
    (found,) = check(data, ["train"], World())
    reasons = {example["path"][-7:-4]: example["reason"] for each in found.oddities for example in each.examples}
    assert [(each.code, each.count) for each in found.oddities if each.code in ("bad mask", "empty")] == [
        ("empty", 1),
        ("bad mask", 4),
    ]
    assert "Masks/003.png: it is damaged" in reasons["003"]
    assert "Masks/005.png: it has " in reasons["005"] and "and its image" in reasons["005"]
    assert reasons["007"].endswith("Masks/007.png: No such file or directory")
    assert "Corrupt JPEG data" in reasons["010"] and reasons["010"].endswith("010.png: No such file or directory")
    noun = "images of the train " + ("data" if table else "list")
    assert conclusion([found]) == f"5 of 12 {noun} would stop training; 1 of 12 {noun} are wrong"


@pytest.mark.parametrize(("kind", "label"), [("number", "age"), ("labels", "tags"), ("boxes", "label")])
def test_other_targets_are_checked_without_classes_of_images(root: Path, kind: str, label: str) -> None:
    data = data_of(root, table=True, targets=kind, columns={"label": label, "extra": ["id"]})
    (found,) = check(data, ["train"], World())
    assert conclusion([found]) is None and found.classes == {}
