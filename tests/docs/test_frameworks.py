"""docs/frameworks.md: every block of Python in it runs, and a state resumes with the very next batch."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import tfpipe
from tests.support.commands import ROOT
from tests.support.documents import blocks
from tests.support.sample import SampleData
from tfpipe import load_config

TORCH, JAX, TORCHDATA, LIGHTNING, ACCELERATE, TRANSFORMERS, ORBAX = blocks(ROOT / "docs/frameworks.md", "python")


@pytest.fixture
def folder(sample: SampleData, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where a user would be: next to a config.json."""
    sample.config(tmp_path / "config.json", data={"index": index})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(block: str) -> dict:
    """Returns the names that a block defines."""
    Path("block.py").write_text(block)
    return runpy.run_path("block.py")


def places(batches: int) -> list[list[int]]:
    """Returns the positions of the first batches' crops."""
    with tfpipe.Loader(load_config("config.json"), positions=True) as loader:
        return [place for _ in range(batches) for place in next(loader)[2].numpy().tolist()]


def test_torch(folder: Path) -> None:
    names = run(TORCH)
    steps = names["loader"].steps_per_epoch
    assert names["images"].dtype == torch.uint8 and names["images"].shape == (16, 3, 32, 32)
    assert torch.isfinite(names["loss"]) and names["loader"].step == steps
    assert run(TORCH)["loader"].step == 2 * steps


def test_jax(folder: Path) -> None:
    names = run(JAX)
    assert names["loader"].step == names["loader"].steps_per_epoch
    assert np.isfinite(names["weights"]).all() and np.any(names["weights"])


def test_torchdata(folder: Path) -> None:
    names = run(TORCHDATA)
    assert torch.cat(names["first"] + names["second"]).tolist() == places(6)


def test_orbax(folder: Path) -> None:
    names = run(ORBAX)
    assert all(np.array_equal(first, second) for first, second in zip(names["first"], names["second"], strict=True))
    assert names["second"][2].tolist() == places(2)[16:]


@pytest.mark.full("importing Lightning takes seconds; the state is torch.Loader's")
def test_lightning(folder: Path) -> None:
    """The checkpoint is amid an epoch, and the second fit goes into the next one."""
    names = run(LIGHTNING)
    assert names["first"] + names["second"] == places(12)


@pytest.mark.full("importing accelerate takes seconds; the state is torch.Loader's")
def test_accelerate(folder: Path) -> None:
    """The second run resumes the first one's checkpoint."""
    assert run(ACCELERATE)["seen"] + run(ACCELERATE)["seen"] == places(10)


@pytest.mark.full("importing transformers takes seconds; the state is torch.Loader's")
def test_transformers(folder: Path) -> None:
    assert run(TRANSFORMERS)["seen"] == places(12)
