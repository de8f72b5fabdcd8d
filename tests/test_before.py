"""Files that an earlier version has left are still of use: configs, an index, packed data, the record of a run.

tests/recorded/before is of d1cf701; make_before.py next to it has made it, and says what it holds.
"""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.recorded.make_before import KINDS, SLOWLY, digest
from tests.support.batches import batches
from tests.support.commands import run_train
from tests.support.runs import read_intervals
from tfpipe import load_config
from tfpipe.cli import main

RECORDED = Path(__file__).parent / "recorded/before"
EXPECTED = json.loads((RECORDED / "expected.json").read_text())
OF_THE_INDEX = "boxes are those of the index"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A copy of what was recorded, elsewhere than it was made."""
    return Path(shutil.copytree(RECORDED, tmp_path / "before"))


def assert_close(before: Path, config: str, *overrides: str) -> None:
    """Asserts that an epoch's crops and those of a test pass are those of then within a level.

    OpenCV resized then. Packed pixels are those of then, to the bit.
    """
    for split, count in (("train", 8), ("test", -1)):
        then = batches(load_config(before / "raw.json"), split, count)
        now = batches(load_config(before / f"{config}.json", list(overrides)), split, count)
        assert len(then) == len(now) > 0
        for (pixels, *rest), (others, *same) in zip(then, now, strict=True):
            assert all((one == other).all() for one, other in zip(rest, same, strict=True))
            assert np.abs(pixels.astype(int) - others).max() <= 1


def wrong(kind: str) -> str:
    """A reminder for when a digest differs."""
    return f"{kind}: other crops than those of d1cf701, made with {EXPECTED['made_with']}"


@pytest.mark.parametrize("name", ["config", "alcf", *KINDS, "run/config"])
def test_a_config_loads(name: str) -> None:
    data = load_config(RECORDED / f"{name}.json").data
    assert (data.batch_size, data.crop_image_size) == (2, (16, 16))
    if name == "alcf":
        assert (data.num_parallel_readers, data.prefetch_buffer_size, data.num_classes) == (1, 0, 3)
        assert data.train_filelist == RECORDED / "train.txt"
    if name == "run/config":
        assert data.prefetch_buffer_size == SLOWLY["data.prefetch_buffer_size"]


@pytest.mark.parametrize("config", ["config", "alcf"])
def test_an_index_is_used_and_no_xml_is_opened(before: Path, config: str, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(before / "Annotations")
    with caplog.at_level(logging.INFO):
        assert_close(before, config)
    for split in ("train", "val"):
        assert f"{OF_THE_INDEX} {before / f'{split}.index.parquet'}" in caplog.messages
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_xmls_give_what_they_gave(before: Path) -> None:
    assert_close(before, "config", "data.annotations=xml")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_data_gives_what_it_gave(before: Path, kind: str) -> None:
    loose = digest(before / "config.json")
    if kind == "original":
        assert_close(before, kind)
    for left in ("Data", "Annotations", *(other for other in KINDS if other != kind)):
        shutil.rmtree(before / left)
    seen, expected = digest(before / f"{kind}.json"), EXPECTED["digests"]
    assert seen == (loose if kind == "original" else expected[kind]), wrong(kind)
    assert (expected[kind] == expected["loose"]) == (kind != "crops")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_data_is_verified(before: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--verify", str(before / kind)]) == 0
    assert "all 8 files are as they were packed" in capsys.readouterr().out
    # A pack that is there is left as it is, so its manifest is that of the same config.
    files = {path: path.read_bytes() for path in (before / kind).iterdir()}
    again = ["pack", "-c", str(before / "config.json"), "--out", str(before / kind), "--kind", kind, "--quality", "90"]
    assert main([*again, "--shards", "2", "--split", "all"]) == 0
    assert {path: path.read_bytes() for path in files} == files


def test_a_stopped_run_is_refused_and_left_as_it_is(before: Path) -> None:
    """Its checkpoint has another form."""
    run_dir = before / "run"
    files = {path: path.read_bytes() for path in run_dir.glob("*.*")}
    done = run_train("-c", before / "config.json", "-l", run_dir, "--resume")
    assert done.code == 2 and "is of format 1, this version of tfpipe reads 2; start a new run" in done.err, done.err
    assert {path: path.read_bytes() for path in files} == files


def test_a_run_is_reported_on(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(before / "run")]) == 0
    said = capsys.readouterr().out
    assert f"{sum(entry['interval']['steps'] for entry in read_intervals(before / 'run'))} steps in 3 intervals" in said
