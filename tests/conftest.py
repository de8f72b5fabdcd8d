"""Settings of all tests, and the data that they train on, made in code."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.sample import SampleData

# How long an example takes says nothing on a machine that is busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast ones first: what trains or starts ranks waits until the rest has passed."""
    items.sort(key=lambda item: any(item.get_closest_marker(name) for name in ("slow", "alone", "mpi")))


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """96 training and 37 validation images of 8 classes, at a fifth of the size."""
    from tfpipe.data.filelist import scan, write_filelist
    from tfpipe.tools.sample import write_sample

    root = tmp_path_factory.mktemp("sample")
    write_sample(root / "tree", images=96, val_images=37, scale=0.2)
    lists = {split: root / f"{split}.txt" for split in ("train", "val")}
    for split, images in scan(root / "tree", show=False).items():
        write_filelist(lists[split], images)
    return SampleData(root / "tree", lists["train"], lists["val"])


@pytest.fixture
def tree(sample: SampleData, tmp_path: Path) -> Path:
    """A copy of the sample that may be spoilt."""
    shutil.copytree(sample.root, tmp_path / "tree")
    for split in ("train", "val"):
        lines = (sample.root.parent / f"{split}.txt").read_text()
        (tmp_path / f"{split}.txt").write_text(lines.replace(str(sample.root), str(tmp_path / "tree")))
    return tmp_path / "tree"
