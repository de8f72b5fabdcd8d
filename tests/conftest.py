"""Settings of all tests, and the data that they train on, made in code."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# What an assert of a helper compared is told, as for one of a test.
pytest.register_assert_rewrite("tests.support")

from tests.support.sample import SampleData  # noqa: E402
from tests.support.warm import ADDRESS, TESTS_PID  # noqa: E402

if TYPE_CHECKING:
    from tfpipe import Config

# How long an example takes says nothing on a machine that is busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure() -> None:
    """Names the warm server's socket, once for all processes that pytest-xdist starts."""
    if ADDRESS not in os.environ:
        # Not below pytest's own folders: a socket's path has 107 characters at most.
        os.environ[ADDRESS] = f"{tempfile.mkdtemp(prefix='tfpipe-')}/warm"
        os.environ[TESTS_PID] = str(os.getpid())


def pytest_unconfigure() -> None:
    """Removes the folder of the warm server's socket."""
    if os.environ.get(TESTS_PID) == str(os.getpid()):
        shutil.rmtree(Path(os.environ.pop(ADDRESS)).parent, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a test that only the full run holds and that does not say why."""
    for item in items:
        for mark in item.iter_markers("full"):
            if not (mark.args or mark.kwargs.get("reason")):
                raise pytest.UsageError(f"{item.nodeid}: pytest.mark.full needs the reason")


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """96 training and 37 validation images of 8 classes, at a fifth of the size."""
    from tfpipe.data.catalog.filelist import scan, write_filelist
    from tfpipe.tools.sample.sample import write_sample

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


@pytest.fixture(scope="session")
def index(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the sample's indexes, for data.index: a pipeline that reads no XML is built in half the time."""
    from tfpipe import World, load_config
    from tfpipe.prepare.index import build_index

    folder = tmp_path_factory.mktemp("index")
    config = load_config(sample.config(folder / "config.json", data={"index": str(folder)}))
    for split in ("train", "test"):
        build_index(config.data, split, World(), 1)
    return str(folder)


@pytest.fixture
def make(sample: SampleData, tmp_path: Path) -> "Callable[..., Config]":
    """Configs of the sample, with indexes of their own."""

    from tfpipe import load_config

    def make_config(**keys: Any) -> "Config":
        data = {
            "index": "indexes",
            "classes": sorted(path.name for path in (sample.root / "Data/CLS-LOC/train").iterdir()),
            **keys,
        }
        return load_config(sample.config(tmp_path / "c.json", data=data))

    return make_config
