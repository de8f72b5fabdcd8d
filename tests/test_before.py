"""Packed data that an earlier version has written, and the ALCF tutorial's config, are still of use.

tests/recorded/before is of d1cf701; make_before.py next to it has made it, and says what it holds.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.recorded.make_before import KINDS, digest
from tests.support.batches import batches
from tfpipe import load_config
from tfpipe.cli import main

RECORDED = Path(__file__).parent / "recorded/before"
EXPECTED = json.loads((RECORDED / "expected.json").read_text())


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


@pytest.mark.parametrize("name", ["config", "alcf", *KINDS])
def test_a_config_loads(name: str) -> None:
    data = load_config(RECORDED / f"{name}.json").data
    assert (data.batch_size, data.crop_image_size) == (2, (16, 16))
    if name == "alcf":
        assert (data.num_parallel_readers, data.prefetch_buffer_size, data.num_classes) == (1, 0, 3)
        assert data.train_filelist == RECORDED / "train.txt"


@pytest.mark.parametrize("kind", KINDS)
def test_packed_data_gives_what_it_gave(before: Path, kind: str) -> None:
    loose = digest(before / "config.json")
    if kind == "original":
        assert_close(before, kind)
    for left in ("Data", "Annotations", *(other for other in KINDS if other != kind)):
        shutil.rmtree(before / left)
    seen, expected = digest(before / f"{kind}.json"), EXPECTED["digests"]
    wrong = f"{kind}: other crops than those of d1cf701, made with {EXPECTED['made_with']}"
    assert seen == (loose if kind == "original" else expected[kind]), wrong
    assert (expected[kind] == expected["loose"]) == (kind != "crops")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_data_is_verified(before: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--verify", str(before / kind)]) == 0
    assert "8 files as packed" in capsys.readouterr().out
    # A pack that is there is left as it is, so its manifest is that of the same config.
    files = {path: path.read_bytes() for path in (before / kind).iterdir()}
    again = ["pack", "-c", str(before / "config.json"), "--out", str(before / kind), "--kind", kind, "--quality", "90"]
    assert main([*again, "--shards", "2", "--split", "all"]) == 0
    assert {path: path.read_bytes() for path in files} == files
