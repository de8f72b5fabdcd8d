"""The main job: a model learns from the data, and from nothing but the data."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.blood import make_blood
from tests.support.commands import ROOT, run, run_train
from tests.support.runs import read_metrics
from tests.support.sample import SampleData, make_sample
from tfpipe import World, load_config
from tfpipe.prepare.trees import scan
from tfpipe.training import loop

# The real data set of configs/bccd.json, if it lies next to the repository.
BCCD = ROOT.parent / "shared/data/bccd"


@pytest.fixture(scope="module")
def small_sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """320 training images at a seventh of the size: enough to learn something from."""
    return make_sample(tmp_path_factory.mktemp("small"), 320, 80, 0.15)


@pytest.fixture(scope="module")
def larger_sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """2000 training images at three tenths of the size: enough to learn nearly everything from."""
    return make_sample(tmp_path_factory.mktemp("larger"), 2000, 300, 0.3)


def metrics_of_small_job(sample: SampleData, tmp_path: Path, **data: Any) -> dict[str, Any]:
    """Returns the last metrics of six epochs of a small network."""
    config = sample.config(
        tmp_path / "c.json",
        data={"crop_image_size": [48, 48], **data},
        model={"name": "tests.support.models:learner"},
        optimizer={"name": "Adam", "args": {"learning_rate": 0.005}},
        lr_schedule={"name": "CosineDecay"},
        training={"epochs": 6, "test_every": 6},
    )
    return loop.train(load_config(config), World(), tmp_path)


def metrics_of_job(sample: SampleData, tmp_path: Path, **data: Any) -> dict[str, Any]:
    """Returns the last metrics of a run of configs/sample.json on `sample`."""
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


def permute(sample: SampleData, path: Path) -> Path:
    """Writes a list of the training images, each with another one's label."""
    images = sample.train.read_text().split()
    labels = [Path(image).parent.name for image in images]
    random.Random(0).shuffle(labels)
    path.write_text("".join(f"{image} {label}\n" for image, label in zip(images, labels, strict=True)))
    return path


def check_chance(metrics: dict[str, Any], images: int) -> None:
    """Checks that the top-1 is 1/8 give or take four standard deviations."""
    assert metrics["test_images"] == images
    assert abs(metrics["test_top1"] - 1 / 8) < 4 * (1 / 8 * 7 / 8 / images) ** 0.5


def test_a_small_sample_is_learnt_from_its_boxes(small_sample: SampleData, tmp_path: Path) -> None:
    """Chance is 1/8; 0.72 is usual."""
    assert metrics_of_small_job(small_sample, tmp_path)["test_top1"] > 0.45


def test_permuted_labels_of_a_small_sample_stay_at_chance(small_sample: SampleData, tmp_path: Path) -> None:
    """Trains on whole images, since an XML's names would give the labels away."""
    permuted = permute(small_sample, tmp_path / "permuted.txt")
    check_chance(metrics_of_small_job(small_sample, tmp_path, annotations="none", train_label_file=str(permuted)), 80)


LONGER = pytest.mark.full("the job of `make train`, which takes minutes: make test has a small one")


@LONGER
def test_the_sample_is_learnt_from_its_boxes(larger_sample: SampleData, tmp_path: Path) -> None:
    assert metrics_of_job(larger_sample, tmp_path)["test_top1"] > 0.9


@LONGER
def test_permuted_labels_stay_at_chance(larger_sample: SampleData, tmp_path: Path) -> None:
    permuted = permute(larger_sample, tmp_path / "permuted.txt")
    check_chance(metrics_of_job(larger_sample, tmp_path, annotations="none", train_label_file=permuted), 300)


@LONGER
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
