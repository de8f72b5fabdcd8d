"""The main job: a model learns from the data, and from nothing but the data."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.blood import make_blood
from tests.support.commands import ROOT, run, run_train
from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe.data.filelist import scan, write_filelist
from tfpipe.tools.sample import write_sample

# The real data set of configs/bccd.json, where it lies beside the repository.
BCCD = ROOT.parent / "shared/data/bccd"


@pytest.fixture(scope="module")
def larger_sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """2000 training images at three tenths of the size: enough to learn from."""
    root = tmp_path_factory.mktemp("larger")
    write_sample(root / "tree", images=2000, val_images=300, scale=0.3)
    for split, images in scan(root / "tree", show=False).items():
        write_filelist(root / f"{split}.txt", images)
    return SampleData(root / "tree", root / "train.txt", root / "val.txt")


def last_metrics(sample: SampleData, tmp_path: Path, **data: Any) -> dict[str, Any]:
    """Of a run of configs/sample.json on `sample`."""
    paths = {
        "train_filelist": sample.train,
        "test_filelist": sample.val,
        "test_label_file": sample.root / "LOC_val_solution.csv",
        **data,
    }
    settings = [each for name, value in paths.items() for each in ("--set", f"data.{name}={value}")]
    done = run_train("-c", ROOT / "configs/sample.json", "-l", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    return read_metrics(tmp_path / "run")[-1]


def test_the_sample_is_learnt_from_its_boxes(larger_sample: SampleData, tmp_path: Path) -> None:
    assert last_metrics(larger_sample, tmp_path)["test_top1"] > 0.9


def test_permuted_labels_stay_at_chance(larger_sample: SampleData, tmp_path: Path) -> None:
    """Whole images, since an XML's names would give the labels away. Chance is 1/8; four standard deviations."""
    images = larger_sample.train.read_text().split()
    labels = [Path(image).parent.name for image in images]
    random.Random(0).shuffle(labels)
    permuted = tmp_path / "permuted.txt"
    permuted.write_text("".join(f"{image} {label}\n" for image, label in zip(images, labels, strict=True)))
    metrics = last_metrics(larger_sample, tmp_path, annotations="none", train_label_file=permuted)
    assert metrics["test_images"] == 300
    assert abs(metrics["test_top1"] - 1 / 8) < 4 * (1 / 8 * 7 / 8 / 300) ** 0.5


def test_blood_cells_are_told_apart_object_by_object(tmp_path: Path) -> None:
    """Pascal VOC layout, a label per object, classes of 85, 8 and 7 % of the objects."""
    root = BCCD
    if not root.exists():
        root = tmp_path / "blood"
        make_blood(root)
    done = run(sys.executable, "-m", "tfpipe", "filelist", root, "--out", tmp_path / "lists")
    assert done.code == 0, done.err
    settings = [f"data.train_filelist={tmp_path}/lists/trainval.txt", f"data.test_filelist={tmp_path}/lists/test.txt"]
    flags = [each for setting in (*settings, "training.epochs=5") for each in ("--set", setting)]
    done = run_train("-c", ROOT / "configs/bccd.json", "-l", tmp_path / "run", *flags)
    assert done.code == 0, done.err
    assert read_metrics(tmp_path / "run")[-1]["test_macro_recall"] >= 0.95


def test_the_stand_in_for_blood_cells_is_a_voc_tree(tmp_path: Path) -> None:
    make_blood(tmp_path / "blood")
    assert {split: len(images) for split, images in scan(tmp_path / "blood").items()} == {"trainval": 150, "test": 50}
