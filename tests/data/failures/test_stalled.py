"""The message about a rank that gets no batch: the next files, and those that do not answer."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.sample import SampleData
from tfpipe import Cursor, Stream, World, load_config
from tfpipe.data.failures import stalled
from tfpipe.data.failures.stalled import pending_files, unreadable_within
from tfpipe.data.runtime.parallelism import READS
from tfpipe.data.sources.registry import load_split


def test_the_next_files_are_those_that_the_rank_reads_next(sample: SampleData, tmp_path: Path) -> None:
    """A file that hangs may be any one of the next batch's, or of those that are decoded together with its last one."""
    config = load_config(sample.config(tmp_path / "config.json"), ["data.batch_size=300"]).data
    world, stream = World(1, 2), Stream.start(2)
    split = load_split(config, "train", world)
    for rest, begin in ((stream, 1), (stream.moved(1, Cursor.after((7, 0))), 7)):
        paths = pending_files(split, rest)
        items = split.order.items(begin + 2 * np.arange(300 + READS), world)
        images = [path for path in paths if not path.endswith(".xml")]
        assert images == [split.catalog.paths[int(item)] for item in items]
        assert {path for path in paths if path.endswith(".xml")} == {
            split.catalog.annotation(int(item)) for item in items
        } - {""}


def test_a_test_pass_ends_where_its_list_does(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "config.json")).data
    split = load_split(config, "test", World())
    stream = Stream.start(1).at([Cursor(len(split.catalog) - 2)])
    paths = pending_files(split, stream)
    assert [path for path in paths if not path.endswith(".xml")] == split.catalog.paths[len(split.catalog) - 2 :]


def test_files_that_do_not_answer_are_told_from_those_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    paths = [str(tmp_path / name) for name in ("good", "fifo", "gone")]
    assert unreadable_within(paths, patience_s=0.3) == [
        f"{paths[1]}: no answer in 0.3 s",
        f"{paths[2]}: No such file or directory",
    ]
    assert unreadable_within(paths[:1]) == []


def test_a_file_far_ahead_that_does_not_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled, "TOGETHER", 2)
    paths = [str(tmp_path / name) for name in "abcdefg"]
    for path in paths[:4]:
        Path(path).touch()
    os.mkfifo(paths[4])
    assert unreadable_within(paths, patience_s=0.3) == [
        f"{paths[4]}: no answer in 0.3 s",
        f"{paths[5]}: No such file or directory",
    ]
