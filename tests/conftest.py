"""Settings of all tests, and the data that they train on, made in code."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# What an assert of a helper compared is told, as for one of a test.
pytest.register_assert_rewrite("tests.support")

from tests.support import full  # noqa: E402
from tests.support.commands import announce_server, forget_server  # noqa: E402
from tests.support.durations import Recorder  # noqa: E402
from tests.support.examples import FULL  # noqa: E402
from tests.support.once import once  # noqa: E402
from tests.support.pipelines import end_aside  # noqa: E402
from tests.support.sample import SampleData, make_sample  # noqa: E402

if TYPE_CHECKING:
    from tfpipe import Config

COLLECTED = pytest.StashKey[list[str]]()

# How long an example takes says nothing on a machine that is busy. The gate tries the same examples of one commit each
# time, the full run others.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not FULL)
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option of `make durations`."""
    parser.addoption("--durations-to", metavar="FILE", help="write the CPU time of each test file to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Names the warm server's socket, once for all processes that pytest-xdist starts."""
    announce_server()
    if path := config.getoption("--durations-to"):
        config.pluginmanager.register(Recorder(Path(path)))


def pytest_unconfigure() -> None:
    """Removes the folder of the warm server's socket."""
    forget_server()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that only the full run holds; refuses one that does not say why."""
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS:
        config.stash[COLLECTED] = [item.nodeid for item in items]
    for item in items:
        if reason := full.table().reason_of(item.nodeid):
            item.add_marker(pytest.mark.full(reason))
        for mark in item.iter_markers("full"):
            if not (mark.args or mark.kwargs.get("reason")):
                raise pytest.UsageError(f"{item.nodeid}: pytest.mark.full needs the reason")


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[str] | None:
    """The ids of all tests; None if this run has collected a part of them."""
    return request.config.stash.get(COLLECTED, None)


def pytest_runtest_setup() -> None:
    """Lets the pipelines that tests iterate end without TensorFlow's stall."""
    end_aside()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """96 training and 37 validation images of 8 classes, at a fifth of the size; tests only read them."""
    folder = once("sample", tmp_path_factory, lambda path: make_sample(path, images=96, val_images=37))
    return SampleData(folder / "tree", folder / "train.txt", folder / "val.txt")


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

    def build(folder: Path) -> None:
        config = load_config(sample.config(folder / "config.json", data={"index": str(folder)}))
        for split in ("train", "test"):
            build_index(config.data, split, World(), 1)

    return str(once("index", tmp_path_factory, build))


@pytest.fixture
def make(sample: SampleData, tmp_path: Path) -> "Callable[..., Config]":
    """Configs of the sample, with indexes of their own."""

    from tfpipe import load_config

    def make_config(**keys: Any) -> "Config":
        data = {"index": "indexes", "classes": sample.classes, **keys}
        return load_config(sample.config(tmp_path / "c.json", data=data))

    return make_config
