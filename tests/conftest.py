"""Settings of all tests, and the data that they train on, made in code."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# What an assert of a helper compared is told, as for one of a test.
pytest.register_assert_rewrite("tests.support")

from tests.support.commands import announce_server, forget_server  # noqa: E402
from tests.support.pipelines import end_aside  # noqa: E402
from tests.support.sample import SampleData, make_sample  # noqa: E402

if TYPE_CHECKING:
    from tfpipe import Config

# How long an example takes says nothing on a machine that is busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure() -> None:
    """Names the warm server's socket, once for all processes that pytest-xdist starts."""
    announce_server()


def pytest_unconfigure() -> None:
    """Removes the folder of the warm server's socket."""
    forget_server()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a test that only the full run holds and that does not say why."""
    for item in items:
        for mark in item.iter_markers("full"):
            if not (mark.args or mark.kwargs.get("reason")):
                raise pytest.UsageError(f"{item.nodeid}: pytest.mark.full needs the reason")


def pytest_runtest_setup() -> None:
    """Lets the pipelines that tests iterate end without TensorFlow's stall."""
    end_aside()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """96 training and 37 validation images of 8 classes, at a fifth of the size."""
    return make_sample(tmp_path_factory.mktemp("sample"), images=96, val_images=37)


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
