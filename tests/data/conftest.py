"""What several of these tests begin with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample import SampleData
from tfpipe import load_config
from tfpipe.config import Config


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
