"""What is said of a rank that gets no batch: the next files, and those that do not answer."""

import os
from pathlib import Path

import numpy as np

from tests.support.sample import SampleData
from tfpipe import Cursor, Stream, World, load_config
from tfpipe.data.failures.stalled import pending_files, unreadable_within
from tfpipe.data.runtime.parallelism import READS
from tfpipe.data.sources.registry import load_catalog


def test_the_next_files_are_those_that_the_rank_reads_next(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "config.json")).data
    world, stream = World(1, 2), Stream.start(2)
    catalog = load_catalog(config, "train", world)
    for last, begin in ((None, 1), ((7, 0), 7)):
        paths = pending_files(catalog, config, world, stream, last)
        items = catalog.order(config).items(begin + 2 * np.arange(READS), world)
        images = [path for path in paths if not path.endswith(".xml")]
        assert images == [catalog.paths[int(item)] for item in items]
        assert {path for path in paths if path.endswith(".xml")} == {
            catalog.annotation(int(item)) for item in items
        } - {""}


def test_a_test_pass_ends_where_its_list_does(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "config.json")).data
    catalog = load_catalog(config, "test", World())
    stream = Stream.start(1).at([Cursor(len(catalog) - 2)])
    paths = pending_files(catalog, config, World(), stream, None)
    assert [path for path in paths if not path.endswith(".xml")] == catalog.paths[len(catalog) - 2 :]


def test_files_that_do_not_answer_are_told_from_those_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    paths = [str(tmp_path / name) for name in ("good", "fifo", "gone")]
    assert unreadable_within(paths, patience_s=0.3) == [
        f"{paths[1]}: no answer in 0.3 s",
        f"{paths[2]}: No such file or directory",
    ]
    assert unreadable_within(paths[:1]) == []
