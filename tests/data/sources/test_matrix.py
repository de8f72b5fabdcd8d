"""Each fault of the data in each source ends as the table of docs/sources.md says."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.batches import crops
from tests.support.commands import ROOT
from tests.support.routes import HEIGHT, WIDTH, Sample
from tests.support.server import Server, serving
from tests.support.source_cases import TEST, TRAIN, Written
from tests.support.source_matrix import FAULTS, KINDS, SOURCES, Row, cells, markdown
from tests.support.sources import write_config
from tfpipe import World
from tfpipe.cli import main
from tfpipe.config import make_config
from tfpipe.data.sources import registry
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index

ODD = 'it\'s 5%, a "b" #1 é日'
# The image that most faults are of.
BAD = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def test_the_table_has_each_cell_once_and_the_page_has_the_table() -> None:
    found = sorted((row.fault, source) for row, source in cells())
    assert found == sorted((fault, source) for fault in FAULTS for source in SOURCES)
    assert markdown() in (ROOT / "docs/sources.md").read_text(), "put tests.support.source_matrix.markdown() there"


def test_each_kind_of_source_is_in_the_table() -> None:
    """A new one gets a column here; archives have tests of their own, test_archive.py."""
    assert {KINDS.get(source, source) for source in SOURCES} | {"archive"} == registry.KINDS.keys()


@pytest.mark.parametrize(
    ("row", "source"),
    [pytest.param(*cell, id=f"{cell[0].fault}-{cell[1]}") for cell in cells() if cell[0].outcome != "none"],
)
def test_it_ends_as_the_table_says(row: Row, source: str, tmp_path: Path, server: Server) -> None:
    written = Written(source, tmp_path, server.url)
    Cell(row, written).run()


class Cell:
    """A fault in a source, and what is to be seen of it."""

    def __init__(self, row: Row, written: Written) -> None:
        self.row, self.data = row, written
        self.train, self.test = list(TRAIN), list(TEST)

    def run(self) -> None:
        {
            "cut": self.cut,
            "changed": self.changed,
            "repeated": lambda: self.expect(BAD, *self.replaced(BAD, TRAIN[BAD - 1])),
            "odd name": lambda: self.expect(BAD, *self.replaced(BAD, TRAIN[BAD]._replace(name=ODD))),
            "line end": lambda: self.expect(BAD, *self.replaced(BAD, TRAIN[BAD]._replace(name="a\nb"))),
            "no label": lambda: self.expect(BAD, *self.replaced(BAD, TRAIN[BAD]._replace(label=""))),
            "unknown class": lambda: self.expect(BAD, TRAIN, [*TEST, TEST[0]._replace(label="emu", name="e")]),
            "no size": self.no_size,
            "split names": self.split_names,
            "setting": self.setting,
        }[self.row.fault]()

    def replaced(self, number: int, sample: Sample) -> tuple[list[Sample], list[Sample]]:
        self.train[number] = sample
        return self.train, self.test

    def expect(self, bad: int, train: list[Sample], test: list[Sample]) -> None:
        """Writes the data and compares what happens with the row."""
        self.compare(self.data.write(train, test), train, test, train[bad])

    def compare(self, data: dict[str, Any], train: list[Sample], test: list[Sample], bad: Sample) -> None:
        outcome = self.row.outcome
        if outcome == "trained":
            assert_trained(data, train, test, by_box=self.row.fault == "no size")
            if self.row.fault == "odd name":
                config = make_config({"data": {**data, "crop": "center"}})
                assert [crop[0] for crop in crops(config, "train", steps=3)] == list(range(12))
        elif outcome == "refused":
            with pytest.raises(ConfigError, match=self.pattern(bad)):
                for split in ("train", "test"):
                    load_split(make_config({"data": data}).data, split, World())
        elif outcome == "found":
            out = self.data.root / "found.json"
            config = write_config(self.data.root / "c.json", data)
            assert main(["check", "-c", str(config), "--json", str(out), "--processes", "1"]) == 1
            (found,) = json.loads(out.read_text())["lists"]
            named = {each["code"]: [Path(one["path"]).stem for one in each["examples"]] for each in found["oddities"]}
            assert named[self.row.says] == [bad.name]

    def pattern(self, bad: Sample) -> str:
        words = [re.escape(part) for part in self.row.says.split("...")]
        file, image = re.escape(str(self.data.container())), re.escape(bad.name).replace("\\\n", r"(\\n|\n|\?)")
        return "(?s)" + ".*".join(words).replace("FILE", file).replace("IMAGE", image)

    def cut(self) -> None:
        data = self.data.write()
        file = self.data.image(TRAIN[BAD]) if self.row.outcome == "found" else self.data.container()
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        self.compare(data, TRAIN, TEST, TRAIN[BAD])

    def changed(self) -> None:
        """Two images change places, and so do the labels of those that are stored with their labels."""
        data = self.data.write()
        load(data)
        one, other = TRAIN[0], TRAIN[-1]
        train = [one._replace(label=other.label), *TRAIN[1:-1], other._replace(label=one.label)]
        if self.row.outcome == "verified" or self.data.source in ("filelist", "folders", "url"):
            train = [one._replace(file=other.file), *TRAIN[1:-1], other._replace(file=one.file)]
        before = {path: stamp(path) for path in self.data.root.rglob("*") if path.is_file()}
        if self.row.outcome == "verified":
            shard = self.data.container()
            contents = shard.read_bytes()
            shard.write_bytes(contents.replace(one.file, other.file, 1))
            with pytest.raises(Exception, match=self.pattern(one)):
                verify(self.data.root / "packed")
            return
        assert self.data.write(train) == data
        for path, (size, changed) in before.items():
            if path.suffix != ".jpg" or self.data.source in ("filelist", "folders", "url"):
                assert not path.exists() or ".catalog/" in str(path) or stamp(path)[0] == size
                os.utime(path, ns=(changed + 10**9, changed + 10**9))
        assert_trained(data, train, TEST)

    def no_size(self) -> None:
        self.data.unsized = TRAIN[BAD].name
        self.expect(BAD, TRAIN, TEST)

    def split_names(self) -> None:
        pairs = {"folders": ("training", "validation"), "tar": ("imagenet-train", "imagenet-val")}
        names = pairs.get(self.data.source, ("birds-train", "birds-test"))
        self.data.names, self.data.together = dict(zip(("train", "test"), names, strict=True)), True
        self.expect(BAD, TRAIN, TEST)

    def setting(self) -> None:
        """The stored table was made for another column of labels, or for other classes."""
        source = self.data.source
        if source in ("csv", "parquet", "tar"):
            self.data.label = "name"
            data = self.data.write()
            other = {**data, "source": {**data["source"], "columns": {"label": "kind"}}}
            with pytest.raises(ConfigError):
                load(other)
            data["source"] = {**data["source"], "columns": {"label": "name"}}
        else:
            data = self.data.write()
            classes = ["dog", "cat", "bird", "emu"]
            if source == "filelist":
                build_index(make_config({"data": {**data, "classes": classes}}).data, "train", World(), 1)
            elif source == "packed":
                data = {**data, "label_source": "object", "classes": classes}
            else:
                load({**data, "classes": classes})
        self.compare(data, TRAIN, TEST, TRAIN[BAD])


def stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def verify(folder: Path) -> str:
    from tfpipe.data.sources.packed.manifest import verify

    return verify(folder)


def load(data: dict[str, Any]) -> list:
    return [load_split(make_config({"data": data}).data, split, World()) for split in ("train", "test")]


def assert_trained(data: dict[str, Any], train: list[Sample], test: list[Sample], by_box: bool = False) -> None:
    """Asserts that the images, the labels and, with `by_box`, the boxes are those of the samples, in any order."""
    crop = {"crop": "boxes", "unit": "box"} if by_box else {"crop": "center"}
    config = make_config({"data": {**data, **crop}})
    for split, chosen in (("train", train), ("test", test)):
        loaded = load_split(config.data, split, World())
        catalog = loaded.catalog
        seen = [(loaded.image(item), catalog.classes[label]) for item, label in enumerate(catalog.labels.tolist())]
        assert sorted(seen) == sorted((sample.file, sample.label) for sample in chosen)
        if by_box and split == "train":
            assert catalog.boxes is not None, "each is a sample"
            edges = catalog.boxes.boxes * np.float32([HEIGHT, WIDTH] * 2)
            expected = [[ymin, xmin, ymax, xmax] for sample in chosen for xmin, ymin, xmax, ymax in sample.boxes]
            assert np.allclose(edges[np.lexsort(edges.T)], np.array(sorted(expected, key=lambda box: box[::-1])))
