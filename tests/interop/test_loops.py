"""The example loops: each crop is trained once however often they are killed, and bad storage ends them by name."""

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.loops import BATCH, LOOPS, Loop
from tests.support.runs import LATE, SLOW, epoch_of, steps
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.data.runtime.clock import DELAY_MS
from tfpipe.data.sources.registry import load_split

loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)


@pytest.fixture
def config(sample: SampleData, tree: Path, tmp_path: Path) -> Path:
    """A training of images that may be spoilt, each of one crop."""
    data = {"train_filelist": "train.txt", "test_filelist": None, "crop": "full", "batch_size": BATCH}
    return sample.config(tmp_path / "c.json", data={**data, "stall_timeout_s": 3})


def image_at(config: Path, position: int) -> Path:
    """Returns the image at a position of the stream."""
    data = load_config(config).data
    split = load_split(data, "train", World())
    return Path(split.catalog.paths[int(split.order.items(np.array([position]))[0])])


@pytest.mark.parametrize(
    "loop",
    [
        LOOPS[0],
        *(pytest.param(loop, marks=pytest.mark.full("a cold start; the same Loader names it")) for loop in LOOPS[1:]),
    ],
    ids=lambda loop: loop.name,
)
def test_a_truncated_image_is_named_after_what_comes_before_it(loop: Loop, config: Path, tmp_path: Path) -> None:
    image = image_at(config, 70)
    image.write_bytes(image.read_bytes()[:400])
    ended = loop.run(config, tmp_path / "run")
    assert ended.code != 0
    assert f"cannot use {image} of the train data: " in ended.err, ended.err
    # A rank decodes 32 images together.
    assert steps(tmp_path / "run") == 64 // (BATCH * loop.sizes[0])
    assert loop.crops(tmp_path / "run") >= 48


@pytest.mark.full("the timeout is the Loader's, which has a test of its own")
@loops
def test_storage_that_hangs_ends_the_loop_within_its_timeout(loop: Loop, config: Path, tmp_path: Path) -> None:
    image = image_at(config, 70)
    image.unlink()
    os.mkfifo(image)
    ended = loop.run(config, tmp_path / "run")
    assert ended.code != 0
    assert "no batch within 3 s: 1 of the next " in ended.err and f"{image}: no answer in 10 s" in ended.err, ended.err


@pytest.mark.full("takes a minute; a state over other numbers of ranks has tests of its own")
@loops
def test_every_crop_is_trained_once_however_often_it_is_killed(
    loop: Loop, sample: SampleData, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DELAY_MS, LATE[DELAY_MS])
    data = {"test_filelist": None, "index": index, "batch_size": BATCH, **SLOW}
    config, run = sample.config(tmp_path / "c.json", data=data), tmp_path / "run"
    wanted, seen = epoch_of(config), Counter()
    first, second, last = loop.sizes
    share = wanted.total() // (3 * BATCH)  # a third of the epoch, in steps of one rank
    seen += loop.kill(first, config, run, step=random.randint(3, share // first))
    reached = sum(seen.values()) // (BATCH * second)
    seen += loop.kill(second, config, run, step=reached + random.randint(3, share // second))
    ended = loop.start(last, config, run)
    _, err = ended.communicate(timeout=300)
    assert ended.returncode == 0, err
    seen += loop.counted(last, run)
    assert {place: count for place, count in seen.items() if place in wanted} == wanted
    assert max(seen.values()) == 1
