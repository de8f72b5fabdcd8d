"""Formats of annotations: the same objects give the same boxes and crops in each, and one of no objects is read."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from tests.support.batches import elements
from tests.support.routes import ANNOTATIONS, CLASSES, HEIGHT, SMALL, WIDTH, samples, write_files
from tests.support.trees import write_below
from tfpipe import Config, World
from tfpipe.config import Layout, make_config
from tfpipe.data.annotations.formats import FORMATS, parse_annotation
from tfpipe.data.annotations.objects import MAX_BYTES
from tfpipe.data.pipeline import build_dataset
from tfpipe.prepare.index import build_index

SAMPLES = samples(12)


def test_every_format_is_tested() -> None:
    assert ANNOTATIONS.keys() == FORMATS.keys() == {*get_args(Layout.model_fields["format"].annotation)}


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_states_the_boxes_or_refuses(form: str) -> None:
    for sample in SAMPLES:
        found = parse_annotation(ANNOTATIONS[form](sample).encode(), "a", form, len(CLASSES))
        sides = [HEIGHT, WIDTH] * 2 if FORMATS[form].relative else [1] * 4
        expected = [[top, left, low, right] for left, top, right, low in sample.boxes]
        assert np.allclose(found.boxes * sides, np.reshape(expected, (-1, 4)))
        assert {name if isinstance(name, str) else CLASSES[name] for name in found.names} <= {sample.label}
    for bad, problem in ((b"\xff\xd8\xff", "a/b"), (b" " * (MAX_BYTES + 1), "a/b is too large for an annotation")):
        with pytest.raises(ValueError, match=problem):
            parse_annotation(bad, "a/b", form)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and their boxes in a folder for each format; every third image has none, but one an empty annotation."""
    folder = tmp_path_factory.mktemp("birds")
    write_files(folder, SAMPLES)
    for form, write in ANNOTATIONS.items():
        annotated = [sample for sample in SAMPLES if sample.boxes or sample is SAMPLES[0]]
        names = [f"{form}/{sample.label}/{sample.name}{FORMATS[form].suffix}" for sample in annotated]
        write_below(folder, dict(zip(names, (write(sample).encode() for sample in annotated), strict=True)))
    return folder


def config_of(root: Path, form: str, **keys: object) -> Config:
    layout = {"images": "images", "annotations": form, "format": form}
    data = {**SMALL, "train_filelist": str(root / "images"), "layout": layout, "classes": list(CLASSES)}
    return make_config({"data": {**data, "label_source": "object", **keys}})


@pytest.mark.parametrize(
    "keys",
    [
        {"label_source": "directory"},
        {"unit": "box"},
        {"crop": "random_resized", "flip": True},
        {"targets": "boxes"},
        {"annotations": "index"},
    ],
)
def test_crops_and_boxes_are_the_same_in_every_format(root: Path, keys: dict, tmp_path: Path) -> None:
    found = []
    for form in FORMATS:
        config = config_of(root, form, index=str(tmp_path / form), **keys)
        if "annotations" in keys:
            assert build_index(config.data, "train", World(), 1).odd["no object"] == 1
        found.append(list(elements(build_dataset(config).take(6))))
    for others in found[1:]:
        for one, other in zip(*map(tf.nest.flatten, (found[0], others)), strict=True):
            assert np.array_equal(one, other)
