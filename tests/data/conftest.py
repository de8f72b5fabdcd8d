"""What several of these tests begin with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.config import Config
from tfpipe.prepare.index import build_index


@pytest.fixture(scope="session")
def index(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the sample's indexes, for data.index: a pipeline that reads no XML is built in half the time."""
    folder = tmp_path_factory.mktemp("index")
    config = load_config(sample.config(folder / "config.json", data={"index": str(folder)}))
    for split in ("train", "test"):
        build_index(config.data, split, World(), 1)
    return str(folder)


@pytest.fixture
def make(sample: SampleData, tmp_path: Path) -> Callable[..., Config]:
    """Configs of the sample, with indexes of their own."""

    def make_config(**keys: Any) -> Config:
        data = {
            "index": "indexes",
            "classes": sorted(path.name for path in (sample.root / "Data/CLS-LOC/train").iterdir()),
            **keys,
        }
        return load_config(sample.config(tmp_path / "c.json", data=data))

    return make_config
