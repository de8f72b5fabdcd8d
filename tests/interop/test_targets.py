"""Targets in other frameworks: boxes as torchvision's detectors take them, texts, and dictionaries of arrays."""

import sys
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.scenes import make_scenes

# Torch has to be imported before TensorFlow, so each framework has a process of its own.
PROGRAM = """
import sys
import {module} as framework
import numpy as np
from tfpipe import Loader, make_config

root = sys.argv[1]
source = {{"kind": "table", "path": root + "/train.jsonl", "columns": {{"extra": ["id", "caption"]}}}}
data = {{"source": source, "crop_image_size": [64, 48], "batch_size": 8}}
config = make_config({{"data": data | {{"targets": "boxes"}}}})
_, expected = next(Loader(config))
expected = {{name: part.numpy() for name, part in expected.items()}}
_, got = next(framework.Loader(config))
for name, part in expected.items():
    own = [text.decode() for text in part.tolist()] if name == "caption" else part
    assert np.array_equal(np.asarray(got[name]), own), name
{more}
"""
RAGGED = """
ragged = {"targets": {"kind": "boxes", "max_boxes": "ragged"}}
images, targets = next(framework.Loader(make_config({"data": data | ragged})))
assert images.shape == (8, 3, 64, 48) and len(targets) == 8
for row, target in enumerate(targets):
    there = expected["labels"][row] >= 0
    assert np.array_equal(target["boxes"].numpy(), expected["boxes"][row][there])
    assert target["labels"].tolist() == expected["labels"][row][there].tolist() and target["labels"].dtype.itemsize == 8
    assert target["id"].item() == expected["id"][row] and target["caption"] == expected["caption"][row].decode()
"""
REFUSED = """
from tfpipe.errors import ConfigError
try:
    framework.Loader(make_config({"data": data | {"targets": {"kind": "boxes", "max_boxes": "ragged"}}}))
except ConfigError as error:
    assert 'data.targets.max_boxes must not be "ragged"' in str(error)
else:
    raise AssertionError("accepted")
"""


@pytest.mark.parametrize(("module", "more"), [("tfpipe.torch", RAGGED), ("tfpipe.jax", REFUSED)])
def test_targets_are_the_same(module: str, more: str, tmp_path: Path) -> None:
    make_scenes(tmp_path / "scenes", 16)
    done = run(sys.executable, "-c", PROGRAM.format(module=module, more=more), tmp_path / "scenes")
    assert done.code == 0, done.err[-3000:]


UNLABELLED = """
import sys
import numpy as np
import {module} as framework
from tfpipe import Loader, load

keys = {{"targets": "none", "batch_size": 8, "views": [{{"count": 2, "size": 32, "crop": "random_resized"}}]}}
expected = []
with load(sys.argv[1], **keys) as loader:
    for _ in range(3):
        (views,) = next(loader)
        expected.append([view.numpy() for view in views])
how = {{"channels_first": False}} if "torch" in "{module}" else {{}}
with framework.Loader(sys.argv[1], **keys, **how) as loader:
    got = [next(loader)]
    state = loader.state_dict()
with framework.Loader(sys.argv[1], **keys, **how) as loader:
    loader.load_state_dict(state)
    got += [next(loader), next(loader)]
for (views,), others in zip(got, expected, strict=True):
    assert len(views) == 2 and all(np.array_equal(np.asarray(view), other) for view, other in zip(views, others))
"""


@pytest.mark.parametrize("module", ["tfpipe.torch", "tfpipe.jax"])
def test_views_need_no_labels(module: str, tmp_path: Path) -> None:
    """Of images in no class folder."""
    make_scenes(tmp_path / "scenes", 16)
    done = run(sys.executable, "-c", UNLABELLED.format(module=module), tmp_path / "scenes/JPEGImages")
    assert done.code == 0, done.err[-3000:]
