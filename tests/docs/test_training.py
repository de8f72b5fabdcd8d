"""docs/training.md and the README: the user's own model, loss, optimizer, metrics and callbacks, and first steps."""

import json
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.commands import ROOT
from tests.support.documents import blocks
from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.training.loop import train
from tfpipe.training.models import weighted_layers

MODULE, *_ = blocks(ROOT / "docs/training.md", "python")
OWN, TUNED, *_ = (json.loads(block) for block in blocks(ROOT / "docs/training.md", "json"))
FIRST_STEPS, *_ = blocks(ROOT / "README.md", "python")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where a user is, with no mine.py of another one imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def run(sample: SampleData, folder: Path, name: str, sections: dict) -> keras.Model:
    """Trains an epoch of two steps on these sections, and returns the model that the run leaves."""
    training = {"epochs": 1, "steps_per_epoch": 2}
    path = sample.config(folder / "c.json", training=training, data={"annotations": "none"}, **sections)
    (folder / "runs" / name).mkdir(parents=True)
    train(load_config(path), World(), folder / "runs" / name)
    return keras.models.load_model(folder / "runs" / name / "model.keras")


def test_what_is_the_users_own_is_trained_and_then_tuned(sample: SampleData, folder: Path) -> None:
    (folder / MODULE.splitlines()[0].removeprefix("# ")).write_text(MODULE)
    first = run(sample, folder, "first", OWN)
    (metrics,) = read_metrics(folder / "runs/first")
    assert {"confident", "top3", "top1", "test_loss"} <= metrics.keys() and 0 <= metrics["top3"] <= 1
    assert (folder / "rates.txt").read_text() == "1 0.0020000000949949026\n"
    model = {**TUNED["model"], "args": OWN["model"]["args"]}
    second = run(sample, folder, "second", {**TUNED, "model": model})
    for one, other in zip(weighted_layers(first), weighted_layers(second), strict=True):
        same = all(map(np.array_equal, one.get_weights(), other.get_weights()))
        assert same == (one.name != "head")


def test_the_first_steps_lead_from_class_folders_to_a_trained_model(sample: SampleData, folder: Path) -> None:
    lines = [line for line in FIRST_STEPS.splitlines() if line and "import " not in line]
    assert len(lines) <= 5 and lines[-1].startswith("model.fit(")
    for name in ("train", "val"):
        shutil.copytree(sample.root / "Data/CLS-LOC/train", folder / "flowers" / name)
    names: dict = {}
    keras.utils.set_random_seed(0)
    exec(FIRST_STEPS, names)
    history = names["model"].history.history
    assert len(history["val_loss"]) == 5 and history["val_loss"][-1] < history["val_loss"][0]
    assert names["model"].output_shape[-1] == 8
