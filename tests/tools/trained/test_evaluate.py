"""The test pass of a saved model: the counts of its training's own, its confusion, and what it refuses."""

import csv
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from tests.support.commands import ROOT, run_ranks
from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.cli import main
from tfpipe.errors import ConfigError
from tfpipe.tools.trained.passes import Confusion, class_table, evaluate


def of_training(run_dir: Path) -> dict[str, float]:
    """The figures of the training's last test pass."""
    return {name: value for name, value in read_metrics(run_dir)[-1].items() if name.startswith("test_")}


def test_the_counts_are_those_of_the_training(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "confusion.png"
    model = str(run_dir / "model.keras")
    assert main(["evaluate", "--model", model, "--json", str(out)]) == 0
    found, own = json.loads(out.read_text()), of_training(run_dir)
    assert {name: found[name] for name in own} == pytest.approx(own, rel=1e-5)
    assert (found["test_images"], found["test_crops"]) == (own["test_images"], own["test_crops"])
    pairs = np.array(found["confusion"])
    hits, crops = pairs[pairs[:, 0] == pairs[:, 1], 2].sum(), pairs[:, 2].sum()
    assert crops == own["test_crops"] and hits / crops == own["test_top1"]
    recalls = [each["recall"] for each in found["classes"] if each["crops"]]
    assert np.mean(recalls) == pytest.approx(own["test_macro_recall"])
    printed = capsys.readouterr().out
    for each in found["classes"]:
        assert each["name"] in printed
    subprocess.run([sys.executable, str(ROOT / "docs/examples/confusion.py"), str(out), str(picture)], check=True)
    with Image.open(picture) as drawn:
        assert min(drawn.size) > 300


def test_ranks_count_every_sample_once(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    model = ("--model", run_dir / "model.keras")
    done = run_ranks(2, sys.executable, "-m", "tfpipe", "evaluate", *model, "--json", out)
    assert done.code == 0, done.err
    found, own = json.loads(out.read_text()), of_training(run_dir)
    assert {name: found[name] for name in own} == pytest.approx(own, rel=1e-5)
    assert sum(count for *_, count in found["confusion"]) == own["test_crops"]


@pytest.mark.full("as the test pass, whose samples each rank shares alike")
def test_ranks_predict_every_sample_once(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = (sys.executable, "-m", "tfpipe", "predict", "--model", run_dir / "model.keras", "-o", out)
    done = run_ranks(2, *command)
    assert done.code == 0, done.err
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    hits = Counter(row["class"] == row["label"] for row in rows)
    assert hits[True] / len(rows) == of_training(run_dir)["test_top1"]


def test_other_classes_are_refused_by_the_first_that_differs(run_dir: Path, sample: SampleData, tmp_path: Path) -> None:
    names = sample.classes
    swapped = [*names[:2], names[3], names[2], *names[4:]]
    config = load_config(sample.config(tmp_path / "c.json", data={"classes": swapped}))
    with pytest.raises(ConfigError, match=rf"class 2 is '{names[2]}' in .*classes\.json .*and '{names[3]}' in the"):
        evaluate(config, run_dir / "model.keras", World())
    more = sample.config(tmp_path / "d.json", data={"classes": [*names, "unseen"]})
    with pytest.raises(ConfigError, match=r"class 8 is none in .*\(of 8\), and 'unseen' in the config's data \(of 9\)"):
        evaluate(load_config(more), run_dir / "model.keras", World())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"crop_image_size": [48, 48]}, r"takes images \[32, 32, 3\], and the config's test crops are \[48, 48, 3\]"),
        ({"dtype": "float32"}, 'type uint8, and data.dtype is float32: set it to "uint8"'),
        ({"num_classes": 9}, "has 8 outputs, and the config's data 9 classes: set data.num_classes to 8"),
        (
            {"dtype": "float32", "normalize": {"mean": [0.5] * 3, "std": [0.5] * 3}},
            "trained on images with data.normalize null",
        ),
    ],
)
def test_images_unlike_those_of_the_training_are_refused(
    run_dir: Path, sample: SampleData, tmp_path: Path, data: dict, said: str
) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data=data))
    with pytest.raises(ConfigError, match=said):
        evaluate(config, run_dir / "model.keras", World())


def test_what_is_no_model_is_refused(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["evaluate", "--model", str(run_dir)]) == 2
    assert f"give the model in it, e.g. {run_dir / 'model.keras'}" in capsys.readouterr().err
    shutil.copy(run_dir / "model.keras", tmp_path / "model.keras")
    assert main(["evaluate", "--model", str(tmp_path / "model.keras")]) == 2
    assert "there is no config.json next to" in capsys.readouterr().err
    config = ["-c", str(run_dir / "config.json")]
    (tmp_path / "classes.json").write_text('{"classes": {"a": 0}}')
    assert main(["evaluate", "--model", str(tmp_path / "model.keras"), *config]) == 2
    assert "classes.json cannot be read" in capsys.readouterr().err
    (tmp_path / "classes.json").unlink()
    (tmp_path / "model.keras").write_bytes(b"PK")
    assert main(["evaluate", "--model", str(tmp_path / "model.keras"), *config]) == 2
    assert "Keras cannot load the model" in capsys.readouterr().err


def test_a_model_without_classes_is_tested_with_a_warning(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(run_dir / "model.keras", tmp_path / "model.keras")
    scores, *_ = evaluate(load_config(run_dir / "config.json"), tmp_path / "model.keras", World())
    assert scores.top1 == of_training(run_dir)["test_top1"] and "is not checked" in caplog.text


def test_a_model_of_other_shapes_is_refused(run_dir: Path, tmp_path: Path) -> None:
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)]).save(tmp_path / "model.keras")
    with pytest.raises(ConfigError, match="expected a model from images"):
        evaluate(load_config(run_dir / "config.json"), tmp_path / "model.keras", World())


def test_the_confusion_is_a_plain_count(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    labels, predicted = draw.integers(0, 5, (2, 200), np.int32)
    confusion = Confusion(6)
    for part in np.array_split(np.arange(200), 7):
        confusion.add(labels[part], predicted[part])
    total = confusion.over(World())
    plain, counted = np.zeros((6, 6), int), np.zeros((6, 6), int)
    np.add.at(plain, (labels, predicted), 1)
    truth, prediction, counts = total.pairs().T
    counted[truth, prediction] = counts
    np.testing.assert_array_equal(counted, plain)
    scores = total.by_class(["a", "b", "c", "d"])
    assert [each.name for each in scores] == ["a", "b", "c", "d", "4", "5"]
    assert scores[1].recall == plain[1, 1] / plain[1].sum() and scores[1].precision == plain[1, 1] / plain[:, 1].sum()
    others = np.where(np.arange(6) == 1, -1, plain[1])
    assert scores[1].mistaken == others.max() and scores[1].mistaken_for == scores[int(others.argmax())].name
    assert scores[5] == ("5", 0, 0, None, None, None, 0)
    assert len(class_table(scores)) == 6  # a heading, and five classes that have crops
