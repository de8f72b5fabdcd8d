"""A trained model."""

from pathlib import Path

import pytest

from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.training.loop import train


@pytest.fixture(scope="package")
def run_dir(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, with its model, config and classes."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    folder.mkdir()
    train(load_config(sample.config(folder.parent / "c.json")), World(), folder)
    return folder
