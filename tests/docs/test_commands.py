"""Readers who follow the documents from top to bottom: every command in them runs, and does what is said."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.blood import make_blood
from tests.support.commands import ROOT
from tests.support.documents import CANNOT, INSTEAD, LEAVES, SHORTER, Reader, blocks, commands, matches
from tests.support.sample import TINY, SampleData
from tests.support.server import serving
from tfpipe import World, load_config
from tfpipe.data.catalog.filelist import write_filelist
from tfpipe.prepare.index import build_index
from tfpipe.prepare.trees import scan

# Those of profiles/*.md run at their smallest size: tests/profiles/test_commands.py.
DOCUMENTS = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "jobs/README.md")
    if commands(path)
}


def make_clone(folder: Path, sample: SampleData) -> None:
    """Makes what a reader has: a clone with the data of `make train`, here small, and indexed to be read sooner."""
    folder.mkdir()
    for name in ("train.py", "docs", "jobs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(sample.root, folder / "data/sample")
    for split, images in scan(folder / "data/sample", show=False).items():
        write_filelist(folder / f"data/sample/lists/{split}.txt", images)
    data = load_config(folder / "configs/sample.json").data
    for split in ("train", "test"):
        build_index(data, split, World(), processes=1)


def make_files(document: Path, folder: Path, imagenet: Path) -> None:
    """Makes what a document takes for granted besides that: a config and its lists, and the files that it shows."""
    lists = {split: f"lists/{split}.txt" for split in ("train", "val")}
    data = {"train_filelist": lists["train"], "test_filelist": lists["val"], "crop_image_size": [32, 32]}
    data |= {"test_label_file": str(imagenet / "LOC_val_solution.csv"), "batch_size": 8}
    (folder / "config.json").write_text(json.dumps({"data": data, "model": TINY}))
    if not any(command.startswith("tfpipe filelist /data") for command in commands(document)):
        for split, images in scan(imagenet, show=False).items():
            write_filelist(folder / lists[split], images)
    for block in blocks(document, "python"):
        if named := re.match(r"# (\w+\.py)\n", block):
            (folder / named[1]).write_text(block)


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path, sample: SampleData) -> Iterator[Reader]:
    """A reader of the document that the test is of."""
    make_clone(tmp_path / "clone", sample)
    make_blood(tmp_path / "clone/BCCD_Dataset/BCCD")
    shutil.copytree(sample.root, tmp_path / "data/ILSVRC")
    make_files(DOCUMENTS[request.node.callspec.params["name"]], tmp_path / "clone", tmp_path / "data/ILSVRC")
    with serving(tmp_path / "data") as server:
        yield Reader(tmp_path, server, [])


FULL = pytest.mark.full("commands that have tests of their own; make test follows the README")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if "README" in name else FULL, id=name) for name in DOCUMENTS]
)
def test_every_command_runs(reader: Reader, name: str) -> None:
    followed = commands(DOCUMENTS[name])
    with ExitStack() as servers:
        # What stands there twice is run once.
        for command in {reader.prepared(command): command for command in followed}.values():
            if any(matches(part, command) for part in CANNOT):
                continue
            if command.startswith("tfpipe serve"):
                servers.enter_context(reader.serving(command))
            else:
                reader.run(command)
    # Only where the lists are made of URLs; else all that follows would work on files just as well.
    assert bool(reader.bucket.asked) == any("s3://" in command for command in followed)


def test_the_tables_speak_of_commands_that_there_are() -> None:
    known = [command for path in DOCUMENTS.values() for command in commands(path)]
    parts = [part for table in (CANNOT, SHORTER, LEAVES) for part in table]
    unknown = [part for part in parts if not any(matches(part, command) for command in known)]
    unknown += [pattern for pattern in INSTEAD if not any(re.search(pattern, command) for command in known)]
    assert unknown == []


def test_the_documents_that_have_commands_are_found() -> None:
    assert {"README.md", "docs/packed.md", "docs/remote.md", "docs/service.md", "jobs/README.md"} <= DOCUMENTS.keys()
