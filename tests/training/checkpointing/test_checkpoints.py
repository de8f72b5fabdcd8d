"""Checkpoint files: whole or not there, the last few kept, and which runs may resume from one."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checkpoints import CONTRACT, STATE
from tests.support.commands import ROOT
from tests.support.examples import examples
from tests.support.flaky import fail_once
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.training.checkpointing.checkpoints import (
    FOLDER,
    Checkpoint,
    GlobalBatch,
    carried_over,
    check_contract,
    contract_of,
    read,
    read_latest,
    write,
)


def checkpoint(total_steps: int = 41) -> Checkpoint:
    weights = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.int64)]
    return Checkpoint(replace(STATE, total_steps=total_steps), weights, [np.array([0.5, 2.5])] * 12)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    written = checkpoint()
    path = write(tmp_path, written, keep=1)
    for got in (read(path), read_latest(tmp_path)):
        for kind in ("weights", "optimizer"):
            for one, other in zip(getattr(got, kind), getattr(written, kind), strict=True):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype
        for name in ("epoch", "step", "total_steps", "batch", "contract", "untested", "epoch_steps"):
            assert getattr(got.state, name) == getattr(written.state, name)
        assert got.state.stream.cursors == STATE.stream.cursors and got.state.stream.rest == 30
        for one, other in [
            (got.state.stream.pending, STATE.stream.pending),
            (got.state.seeds, STATE.seeds),
            *((got.state.metrics[path], STATE.metrics[path]) for path in (*STATE.metrics, *got.state.metrics)),
        ]:
            np.testing.assert_array_equal(one, other)


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    for total_steps in (9, 10, 99, 100, 1_000_000):
        write(tmp_path, checkpoint(total_steps), keep=2)
    assert read_latest(tmp_path).state.total_steps == 1_000_000
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["step-000000100.npz", "step-001000000.npz"]


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, checkpoint(1), keep=5)
    for total_steps, spoil in enumerate(
        (lambda b: b[: len(b) // 2], lambda _: b"", lambda b: b[:300] + b"\xff" + b[301:]), 2
    ):
        path = write(tmp_path, checkpoint(total_steps), keep=5)
        path.write_bytes(spoil(path.read_bytes()))
    assert read_latest(tmp_path).state.total_steps == 1
    (tmp_path / FOLDER / "step-000000001.npz").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"no checkpoint of .* can be read: .*step-000000004\.npz"):
        read_latest(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_that_may_pass_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    write(tmp_path, checkpoint(1), keep=5)
    pauses = fail_once(monkeypatch, np, "savez", number)
    write(tmp_path, checkpoint(2), keep=5)
    assert pauses == [1]
    pauses = fail_once(monkeypatch, np, "load", number)
    assert read_latest(tmp_path).state.total_steps == 2 and pauses == [1]


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.folder,)


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "step-000000001.npz", about=np.array([Payload(tmp_path / "made")], object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read(tmp_path / "step-000000001.npz")
    assert not (tmp_path / "made").exists()


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert read_latest(tmp_path) is None
    assert read_latest(tmp_path / "nowhere") is None


def test_a_failed_write_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, checkpoint(1), keep=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, checkpoint(2), keep=1)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["step-000000001.npz"]


WRITING = """
import sys, numpy as np
from dataclasses import replace
from pathlib import Path
from tests.support.checkpoints import STATE
from tfpipe.training.checkpointing.checkpoints import Checkpoint, write
for number in range(1, 100000):
    arrays = [np.full(300_000, number, np.float32)] * 4
    write(Path(sys.argv[1]), Checkpoint(replace(STATE, total_steps=number), arrays, []), keep=1)
    print(number, flush=True)
"""


def test_a_kill_while_writing_leaves_a_whole_one(tmp_path: Path) -> None:
    """Killed at some moments, a process that does nothing but write always leaves the last one that it announced."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for attempt in range(examples(10) // 2):
        folder = tmp_path / str(attempt)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITING, str(folder)], stdout=subprocess.PIPE, text=True, env=env
        )
        announced = int(process.stdout.readline())
        time.sleep(0.006 * attempt)
        process.send_signal(signal.SIGKILL)
        rest = process.communicate(timeout=20)[0].split()
        announced = int(rest[-1]) if rest else announced
        state, weights, _ = read_latest(folder)
        assert state.total_steps in (announced, announced + 1)
        assert all((array == state.total_steps).all() for array in weights)


def check(batch: GlobalBatch = STATE.batch, anyway: bool = False, **changes: object) -> None:
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    check_contract(STATE, {**CONTRACT, **changed}, batch, anyway)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__seed": 1}, "data.seed: 0 then, 1 now"),
        ({"images": 95, "file names": "cd" * 32}, 'images: 96 then, 95 now\n  file names: "ababababa..."'),
        ({"data__new": True}, "data.new: null then, true now"),
    ],
)
def test_another_run_does_not_unless_told_to(
    changes: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(**changes)
    assert said in str(caught.value)
    assert "--resume-anyway" in str(caught.value)
    check(anyway=True, **changes)
    assert "resumes although this has changed" in caplog.text


@pytest.fixture
def contracts(sample: SampleData, index: str, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Contracts of runs with as many images: XMLs that the pipeline reads, boxes known from the start, and neither."""
    config = load_config(sample.config(tmp_path / "c.json", data={"index": index}))
    split = load_split(config.data, "train", World())
    indexed = split.catalog
    xmls = replace(indexed, boxes=None)
    there = [folder.replace("/Annotations/", "/Others/") for folder in indexed.annotation_folders]
    catalogs = {
        "XMLs": xmls,
        "other XMLs": replace(xmls, annotation_folders=there),
        "indexed": indexed,
        "read": replace(indexed, boxes=with_boxes(xmls, split.storage, World()).boxes, annotation_folders=there),
        "other boxes": replace(indexed, boxes=indexed.boxes._replace(boxes=1 - indexed.boxes.boxes)),
        "packed": replace(xmls, annotation_folders=[""] * len(there)),
    }
    return {name: contract_of(config, replace(split, catalog=catalog)) for name, catalog in catalogs.items()}


@pytest.mark.parametrize(
    ("then", "now", "different"),
    [
        ("XMLs", "XMLs", None),
        ("XMLs", "other XMLs", "layout"),
        ("XMLs", "indexed", None),
        ("other XMLs", "indexed", "layout"),
        ("indexed", "read", None),
        ("indexed", "other boxes", "boxes"),
        ("XMLs", "packed", None),
        ("indexed", "packed", None),
    ],
)
def test_other_annotations_are_another_run(
    contracts: dict[str, dict[str, Any]], then: str, now: str, different: str | None
) -> None:
    state = replace(STATE, contract=json.loads(json.dumps(contracts[then])))
    if different is None:
        check_contract(state, contracts[now], STATE.batch, anyway=False)
    else:
        with pytest.raises(ConfigError, match=f"belongs to another run:\n  {different}: .*\ncontinue"):
            check_contract(state, contracts[now], STATE.batch, anyway=False)


@pytest.mark.parametrize("batch", [GlobalBatch(4, 8), GlobalBatch(1, 32), GlobalBatch(3, 16)])
def test_another_number_of_ranks_goes_on_with_the_batch_per_rank_or_over_all(batch: GlobalBatch) -> None:
    check(batch)


@pytest.mark.parametrize("batch", [GlobalBatch(2, 8), GlobalBatch(3, 8)])
def test_another_batch_does_not(batch: GlobalBatch) -> None:
    with pytest.raises(ConfigError, match=rf"data.batch_size: 2 ranks x 16 then, {batch.size} ranks x 8 now"):
        check(batch)
    check(batch, anyway=True)


def test_shards_stay_with_their_ranks() -> None:
    """Not even if told to: what another number of ranks would have to do is unknown."""
    with pytest.raises(ConfigError, match="a run resumes only with as many ranks: 2 then, 4 now"):
        check(GlobalBatch(4, 8), anyway=True, data__scope="shard")


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 64), st.data())
def test_the_share_of_an_epoch_that_is_done_stays(crops: int, before: int, after: int, data: st.DataObject) -> None:
    old, new = GlobalBatch(1, before), GlobalBatch(1, after)
    steps = [max(1, -(-crops // batch.crops)) for batch in (old, new)]
    step = data.draw(st.integers(0, steps[0] - 1))
    now, scale = carried_over(replace(STATE, step=step, batch=old), new, steps[1], fixed=False)
    assert scale == before / after
    assert 0 <= now < steps[1]
    assert abs(now * new.crops - step * old.crops) <= max(old.crops, new.crops)
    if before == after:
        assert now == step


@pytest.mark.parametrize(("steps", "expected"), [(10, (7, 1.0)), (20, (14, 2.0)), (5, (4, 0.5))])
def test_epochs_of_a_fixed_number_of_steps_go_on_from_the_same_share(steps: int, expected: tuple[int, float]) -> None:
    """Holds for any number of ranks: the schedule counts epochs by their steps."""
    for batch in (STATE.batch, GlobalBatch(4, 16)):
        assert carried_over(STATE, batch, steps, fixed=True) == expected


def test_the_one_just_written_is_kept_and_a_later_one_that_could_not_be_read_is_not(tmp_path: Path) -> None:
    for total_steps in (1, 2, 8, 9):
        last = write(tmp_path, checkpoint(total_steps), keep=4)
    last.write_bytes(b"no zip")
    last.with_name("step-000000008.npz").write_bytes(b"no zip")
    assert read_latest(tmp_path).state.total_steps == 2
    path = write(tmp_path, checkpoint(3), keep=1)
    assert list((tmp_path / FOLDER).iterdir()) == [path] and read_latest(tmp_path).state.total_steps == 3


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, checkpoint(), keep=1)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["about"] = np.array(json.dumps({**json.loads(str(arrays["about"])), "format": 99}))
    np.savez(path, **arrays)
    with pytest.raises(ConfigError, match="is of format 99, this version of tfpipe reads 2"):
        read_latest(tmp_path)
