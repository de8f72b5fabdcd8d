"""What tests of the data share."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import SampleData


@pytest.fixture
def tree(sample: SampleData, tmp_path: Path) -> Path:
    """A copy of the sample that may be spoilt."""
    shutil.copytree(sample.root, tmp_path / "tree")
    for split in ("train", "val"):
        lines = (sample.root.parent / f"{split}.txt").read_text()
        (tmp_path / f"{split}.txt").write_text(lines.replace(str(sample.root), str(tmp_path / "tree")))
    return tmp_path / "tree"
