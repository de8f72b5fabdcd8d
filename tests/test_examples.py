"""The examples: they run as their first lines say, and what they say is so."""

import io
import runpy
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from tests.support.commands import ROOT
from tests.support.sample import SampleData
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
