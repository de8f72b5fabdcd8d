"""Predictions: the classes of the test pass, of lists, folders and images, by the same pipeline."""

import csv
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.sample import SampleData
from tfpipe import Loader, World, load_config
from tfpipe.cli import main
from tfpipe.errors import ConfigError
from tfpipe.tools.trained.predict import predict


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_test_data_have_the_models_own_probabilities(run_dir: Path, sample: SampleData, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert main(["predict", "--model", str(run_dir / "model.keras"), "-o", str(out), "--top", "3"]) == 0
    rows = rows_of(out)
    with Loader(load_config(run_dir / "config.json"), "test", named=True) as loader:
        batches = list(loader.this_pass())
        images, labels = (np.concatenate(parts) for parts in zip(*(batch.data for batch in batches), strict=True))
        positions = np.concatenate([batch.positions for batch in batches])
        paths = [loader.catalog.paths[position] for position in positions[:, 0]]
    logits = keras.models.load_model(run_dir / "model.keras").predict(images, verbose=0)
    best = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = np.array(sample.classes)
    assert list(rows[0]) == [
        *("path", "crop", "label", "class", "probability"),
        *("class_2", "probability_2", "class_3", "probability_3"),
    ]
    assert [row["path"] for row in rows] == paths
    assert [int(row["crop"]) for row in rows] == positions[:, 1].tolist() and len(rows) > 37
    assert [row["label"] for row in rows] == names[labels].tolist()
    assert [row["class"] for row in rows] == names[best[:, 0]].tolist()
    assert [row["class_3"] for row in rows] == names[best[:, 2]].tolist()
    written = [float(row["probability_2"]) for row in rows]
    np.testing.assert_allclose(written, np.take_along_axis(probabilities, best, 1)[:, 1], rtol=1e-4)


def test_a_list_a_folder_and_an_image_give_the_same(run_dir: Path, sample: SampleData, tmp_path: Path) -> None:
    first, second = (sample.root / "Data/CLS-LOC/train" / name for name in sample.classes[:2])
    images = sorted(first.glob("*.JPEG"))
    (tmp_path / "list.txt").write_text("".join(f"{image}\n" for image in images))
    model = ["--model", str(run_dir / "model.keras"), "-o"]
    outs = {name: tmp_path / f"{name}.csv" for name in ("list", "folder", "image")}
    assert main(["predict", str(tmp_path / "list.txt"), *model, str(outs["list"])]) == 0
    assert main(["predict", str(first), str(second), *model, str(outs["folder"])]) == 0
    assert main(["predict", str(images[2]), *model, str(outs["image"]), "--top", "1"]) == 0
    listed, of_folders, single = map(rows_of, outs.values())
    assert [row["path"] for row in listed] == list(map(str, images)) and len(listed) > 2
    assert of_folders[: len(listed)] == listed and len(of_folders) > len(listed)
    assert single == [{name: listed[2][name] for name in ("path", "class", "probability")}]
    assert sum(float(row[name]) for row in listed[:1] for name in row if name.startswith("prob")) <= 1


def test_the_training_data_need_not_be_there(run_dir: Path, tmp_path: Path, sample: SampleData) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    config = tmp_path / "run/config.json"
    config.write_text(config.read_text().replace(str(sample.train), "/away/train.txt"))
    image = next((sample.root / "Data/CLS-LOC/val").rglob("*.JPEG"))
    args = ["predict", str(image), "--model", str(tmp_path / "run/model.keras"), "-o", str(tmp_path / "o.csv")]
    assert main(args) == 0
    # Nor is test data needed.
    assert main([*args, "--set", "data.test_filelist=null"]) == 0
    assert rows_of(tmp_path / "o.csv")[0]["class"] in sample.classes
    # Without the names, the classes are numbers.
    (tmp_path / "run/classes.json").unlink()
    assert main(args) == 0
    assert rows_of(tmp_path / "o.csv")[0]["class"] in set(map(str, range(8)))


def test_an_image_left_out_is_told_and_a_bad_one_named(
    run_dir: Path, sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(sample.root / "Data/CLS-LOC/train" / sample.classes[0], folder)
    bad = sorted(folder.glob("*.JPEG"))[1]
    bad.write_bytes(b"no image")
    args = ["predict", str(folder), "--model", str(run_dir / "model.keras"), "-o", str(tmp_path / "o.csv")]
    assert main(args) == 1
    assert str(bad) in capsys.readouterr().err and not (tmp_path / "o.csv").exists()
    assert main([*args, "--set", "data.on_error=skip"]) == 0
    out = capsys.readouterr().out
    assert f"left out: {bad}" in out
    assert len(rows_of(tmp_path / "o.csv")) == len(list(folder.glob("*.JPEG"))) - 1


def test_what_cannot_be_predicted_is_refused(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = run_dir / "model.keras"
    config = load_config(run_dir / "config.json")
    with pytest.raises(ConfigError, match=r"--top 9: .* has 8 outputs; accepted: 1 to 8"):
        predict(config, model, [], 9, World())
    with pytest.raises(ConfigError, match="there is no image"):
        predict(config, model, [tmp_path / "no.jpg"], 1, World())
    with pytest.raises(ConfigError, match="no image in"):
        predict(config, model, [tmp_path], 1, World())
    with pytest.raises(SystemExit):
        main(["predict", "--model", str(model), "-o", str(tmp_path / "no" / "o.csv")])
    assert "there is no folder" in capsys.readouterr().err
