"""Every way to take a Loader's batches, and every way that can end: docs/frameworks.md's table, cell by cell."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.commands import COLD, ROOT, run
from tests.support.consumers import KERAS, LOOPS, LOOPS_OF_TEST, LOOPS_OF_TRAIN
from tests.support.packs import LOOSE, packed
from tests.support.sample import SampleData
from tfpipe import load_config

TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
LIGHTNING = pytest.param(
    ("Lightning", *LOOPS_OF_TRAIN, *LOOPS_OF_TEST), {}, marks=pytest.mark.full("importing Lightning takes seconds")
)
TORCH = pytest.param((), {"KERAS_BACKEND": "torch"}, marks=pytest.mark.full("a cold start; as on JAX"))


def table() -> dict[str, str]:
    """The cells of the document's table by "CONSUMER, SPLIT, ENDING"."""
    text = (ROOT / "docs/frameworks.md").read_text().split("## Who takes the batches")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", text, re.M)]
    head, _, *rows = rows
    return {
        f"{row[0].strip('`')}, {row[1]}, {ending}": cell
        for row in rows
        for ending, cell in zip(head[2:], row[2:], strict=True)
    }


@pytest.fixture(scope="module")
def config(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed pixels: their pipeline is built in a fifth of the time, which is most of what a cell takes."""
    folder = tmp_path_factory.mktemp("consumers")
    shape = {"batch_size": 8, "crop_image_size": [16, 16]}
    pack = packed(load_config(sample.config(folder / "loose.json", data=shape)), folder / "raw", "raw", shards=2)
    data = {**LOOSE, **shape, "source": {"kind": "packed", "path": str(pack)}}
    return sample.config(folder / "c.json", data=data, training={"steps_per_epoch": 6})


@pytest.mark.parametrize(
    ("names", "environ"),
    [
        (("for", "epoch"), {}),
        (("DataLoader", "StatefulDataLoader"), {}),
        (("JAX", "JAX, sharded"), TWO_DEVICES),
        LIGHTNING,
        ((), {"KERAS_BACKEND": "tensorflow"}),
        ((), {"KERAS_BACKEND": "jax"}),
        TORCH,
    ],
    ids=lambda value: "-".join(value) or "keras" if isinstance(value, tuple) else value.get("KERAS_BACKEND", ""),
)
def test_each_cell_is_as_the_document_says(config: Path, names: tuple[str, ...], environ: dict[str, str]) -> None:
    done = run(sys.executable, "-m", "tests.support.consumers", config, *names, **environ, **COLD)
    assert done.code == 0, done.err
    results, expected = json.loads(done.out.splitlines()[-1]), table()
    assert results and results.keys() <= expected.keys()
    for cell, result in results.items():
        if environ.get("KERAS_BACKEND") == "torch" and "two steps a call" in cell:
            assert "`steps_per_execution` must be 1 with the PyTorch backend" in result, cell
        else:
            assert result == expected[cell] == "exact", f"{cell}: {result}"


def test_the_document_has_each_cell() -> None:
    consumers = {(name, split) for name in LOOPS for split in ("train", "test")}
    consumers |= {(name, "train") for name in LOOPS_OF_TRAIN} | {(name, "test") for name in LOOPS_OF_TEST}
    consumers |= {(name, split) for split, kinds in KERAS.items() for name in kinds}
    listed = {tuple(cell.rsplit(", ", 2)[:2]) for cell in table()}
    assert listed == consumers
