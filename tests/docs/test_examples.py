"""The examples: they run as their first lines say, and what they say is so."""

import io
import re
import runpy
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.blood import make_blood
from tests.support.commands import ROOT, run
from tests.support.sample import SampleData
from tests.support.scenes import make_scenes
from tfpipe.cli import main


def inspect(config: Path, out: Path, *args: str) -> dict[str, str]:
    """Returns what inspect_dataset.py prints, by what it is of; checks that it draws something."""
    script = str(ROOT / "docs/examples/inspect_dataset.py")
    printed = io.StringIO()
    with patch.object(sys, "argv", [script, "-c", str(config), "-o", str(out), *args]), redirect_stdout(printed):
        runpy.run_path(script, run_name="__main__")
    pixels = np.asarray(Image.open(out).convert("RGB"))
    assert min(pixels.shape[:2]) > 900
    # In every ninth of it there is something: pictures above, figures below.
    for row in np.array_split(pixels, 3):
        for part in np.array_split(row, 3, axis=1):
            assert (part == part[0, 0]).all(-1).mean() < 0.95
    return dict(line.split(": ", 1) for line in printed.getvalue().splitlines())


def numbers(text: str) -> list[float]:
    """All in it."""
    return [float(word) for word in text.replace(",", " ").split() if word.replace(".", "").isdigit()]


def test_a_data_set_is_inspected(sample: SampleData, tmp_path: Path) -> None:
    images = [Path(line) for line in sample.train.read_text().splitlines()]
    xmls = [Path(str(each).replace("Data/", "Annotations/")).with_suffix(".xml") for each in images]
    boxes = {each: ElementTree.parse(each).findall("object/bndbox") for each in xmls if each.exists()}
    counts = {image: len(boxes.get(xml, "_")) for image, xml in zip(images, xmls, strict=True)}
    crops = Counter(each.parent.name for each in images for _ in range(counts[each]))
    total, most = sum(map(len, boxes.values())), max(map(len, boxes.values()))
    sizes = np.array([Image.open(each).size for each in images])
    config = sample.config(tmp_path / "c.json")

    found = inspect(config, tmp_path / "all.png")
    assert found["train"] == f"96 of 96 images, {len(boxes)} of them annotated"
    assert found["boxes"] == f"{total} in {len(boxes)} images, at most {most} in one"
    assert found["crops"].startswith(f"{crops.total()} of 8 classes, from {min(crops.values())} (")
    assert f" to {max(crops.values())} (" in found["crops"]
    for side, values in zip(("width", "height"), sizes.T, strict=True):
        np.testing.assert_allclose(numbers(found[side])[0], np.median(values), rtol=0.01)
    areas, shapes = [], [width / height for (width, height), xml in zip(sizes, xmls, strict=True) if xml not in boxes]
    for xml, (width, height) in zip(xmls, sizes, strict=True):
        for box in boxes.get(xml, ()):
            left, top, right, bottom = (int(box.findtext(edge)) for edge in ("xmin", "ymin", "xmax", "ymax"))
            areas.append((right - left) * (bottom - top) / (width * height))
            shapes.append((right - left) / (bottom - top))
    of_areas = found["area of a box, as a share of its image"]
    np.testing.assert_allclose(numbers(of_areas)[0], np.median(areas), rtol=0.01)
    np.testing.assert_allclose(numbers(found["width / height of a crop"])[0], np.median(shapes), rtol=0.01)

    # The index says the same.
    assert main(["index", "-c", str(config), "--set", f"data.index={tmp_path}"]) == 0
    indexed = sample.config(tmp_path / "indexed.json", data={"index": str(tmp_path), "annotations": "index"})
    assert inspect(indexed, tmp_path / "indexed.png") == found


@pytest.mark.full("two options of an example")
def test_a_part_of_the_test_data_is_inspected(sample: SampleData, tmp_path: Path) -> None:
    found = inspect(sample.config(tmp_path / "c.json"), tmp_path / "test.jpg", "--split", "test", "--images", "20")
    assert found["test"] == "20 of 37 images, 20 of them annotated"
    assert numbers(found["boxes"])[0] >= 20


# Determinism holds for a whole process.
STOPPED = """
import runpy, sys
from pathlib import Path
import numpy as np
import tensorflow as tf

tf.config.experimental.enable_op_determinism()
root, names = Path(sys.argv[2]), ["RBC", "WBC", "Platelets"]
detect = runpy.run_path(sys.argv[1])

def train(name):
    (root / name).mkdir(exist_ok=True)
    return detect["train"](detect["config_of"](root / "blood", root / name, names, 4), root / name, names, 2, 1)

whole = train("whole")
save, saves = tf.train.CheckpointManager.save, []

def stop(manager):
    save(manager)
    saves.append(1)
    if len(saves) == 3:
        raise KeyboardInterrupt

tf.train.CheckpointManager.save = stop
try:
    train("stopped")
except KeyboardInterrupt:
    print("stopped")
tf.train.CheckpointManager.save = save
resumed = train("stopped")
assert all(np.array_equal(*pair) for pair in zip(whole.get_weights(), resumed.get_weights(), strict=True))
precisions = detect["evaluate"](whole, detect["config_of"](root / "blood", root / "whole", names, 4), names)
assert precisions.shape == (3,) and (precisions >= 0).all() and (precisions <= 1).all()
"""


def test_a_detector_that_was_stopped_continues_exactly(tmp_path: Path) -> None:
    """Its weights are those of a training that was not stopped."""
    make_blood(tmp_path / "blood")
    for split, count in (("trainval", 12), ("test", 4)):
        file = tmp_path / f"blood/ImageSets/Main/{split}.txt"
        file.write_text("\n".join(file.read_text().split()[:count]))
    done = run(sys.executable, "-c", STOPPED, ROOT / "docs/examples/detect.py", tmp_path)
    assert done.code == 0, done.err[-3000:]
    assert "stopped" in done.out.split()


def test_simclr_runs_and_learns_to_find_the_other_view(sample: SampleData, tmp_path: Path) -> None:
    """An epoch of the sample; and steps on patterns that differ more from each other than their views do."""
    script, printed = str(ROOT / "docs/examples/simclr.py"), io.StringIO()
    config = sample.config(tmp_path / "c.json", data={"test_filelist": None, "annotations": "none"})
    with patch.object(sys, "argv", [script, "-c", str(config), "--epochs", "1"]), redirect_stdout(printed):
        names = runpy.run_path(script, run_name="__main__")
    (row,) = (numbers(line) for line in printed.getvalue().splitlines())
    assert len(row) == 3 and 0 < row[1] < 10
    random, found = np.random.default_rng(0), []
    params = names["build"](3)
    moments = {name: np.zeros(weight.shape, np.float32) for name, weight in params.items()}
    for _ in range(30):
        patterns = np.kron(random.integers(0, 256, (16, 4, 4, 3)), np.ones((1, 8, 8, 1)))
        views = [(patterns * random.uniform(0.6, 1, (16, 1, 1, 1))).astype(np.uint8) for _ in range(2)]
        params, moments, (_, share) = names["step"](params, moments, *views)
        found.append(float(share))
    # Of 31 others, one is the other view of the same image.
    assert np.mean(found[-5:]) > 0.5


def test_a_data_frame_is_fine_tuned(sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second run the layers but the last begin with the weights of the first."""
    folder = ROOT / "docs/examples"
    monkeypatch.syspath_prepend(str(folder))
    images = sorted((sample.root / "Data/CLS-LOC/train").rglob("*.JPEG"))
    rows = [f"{path},{path.parent.name}" for path in images]
    (tmp_path / "flowers.csv").write_text("\n".join(["path,label", *rows, ""]))
    printed = io.StringIO()

    def tune(name: str, *more: str) -> str:
        words = ["x.py", str(tmp_path / "flowers.csv"), "--size", "32", "--epochs", "2", *more]
        with (
            patch.object(sys, "argv", [*words, "-o", str(tmp_path / f"{name}.pt")]),
            redirect_stdout(printed),
            redirect_stderr(io.StringIO()) as bar,
        ):
            runpy.run_path(str(folder / "finetune_torch.py"), run_name="__main__")
        return bar.getvalue()

    small, weights = ["--args", '{"width": 4}'], ["--weights", str(tmp_path / "first.pt"), "--epochs", "1"]
    for bar in (tune("first", *small), tune("second", *small, *weights)):
        assert re.search(r"epoch 1: 100%.* [1-9]\d*/[1-9]\d* ", bar)
    assert re.findall(r"epoch (\d): test accuracy [01]\.\d{3}", printed.getvalue()) == ["1", "2", "1"]
    first, second = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("first", "second"))
    learnt = [name for name in first if "running" not in name and "tracked" not in name]
    same = [name for name in learnt if torch.equal(first[name], second[name])]
    assert sorted({*learnt} - {*same}) == ["13.bias", "13.weight"]
    torch.save({name: value for name, value in first.items() if name != "0.0.weight"}, tmp_path / "cut.pt")
    with pytest.raises(SystemExit, match=r"cut\.pt is of another model: 1 names differ, e\.g\. 0\.0\.weight"):
        tune("third", *small, "--weights", str(tmp_path / "cut.pt"))


def test_the_objects_of_an_image_are_told(tmp_path: Path) -> None:
    make_scenes(tmp_path / "scenes", 120)
    words = [str(tmp_path / "scenes/train.txt"), "--classes", "red", "green", "blue", "--side", "64", "--epochs", "10"]
    script, printed = str(ROOT / "docs/examples/multi_label.py"), io.StringIO()
    with patch.object(sys, "argv", [script, *words]), redirect_stdout(printed):
        runpy.run_path(script, run_name="__main__")
    told = re.findall(r"^(\w+): ([01]\.\d+) of 12 images are told right$", printed.getvalue(), re.MULTILINE)
    assert [name for name, _ in told] == ["red", "green", "blue"]
    # About half of the images have an object of a class.
    assert sum(float(share) for _, share in told) / 3 > 0.8
