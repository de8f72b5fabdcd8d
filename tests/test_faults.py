"""Faults under a real run: files that go, storage that hangs, ranks that die or stop, disks that are full."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import COLD, ROOT, Processes, finish, run, run_train
from tests.support.runs import SLOW, read_metrics, steps, train, trained, wait_for
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.data.catalog import load_catalog

# Long for what should take seconds, short beside a hang.
BOUNDED_S = 120


@pytest.fixture
def config(sample: SampleData, tree: Path, tmp_path: Path) -> Path:
    """Many steps of images that may be spoilt, each named five times in the list."""
    (tmp_path / "list.txt").write_text((tmp_path / "train.txt").read_text() * 5)
    training = {"epochs": 3, "log_positions": True, "interval": 10, "checkpoint": {"every_steps": 15}}
    data = {"train_filelist": "list.txt", "test_filelist": None, "batch_size": 4, "crop": "full", **SLOW}
    return sample.config(tmp_path / "c.json", data=data, training=training)


def images(tree: Path) -> list[Path]:
    return sorted((tree / "Data/CLS-LOC/train").rglob("*.JPEG"))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_goes_in_mid_epoch_is_named(config: Path, tree: Path, tmp_path: Path, what: str) -> None:
    process = train(1, "-c", config, "-l", tmp_path / "run")
    wait_for(lambda: steps(tmp_path / "run") >= 3, process)
    gone = images(tree)[5] if what == "file" else images(tree)[5].parent
    gone.rename(gone.with_name("away"))
    ended = finish(process, BOUNDED_S)
    assert ended.code == 1
    assert f"rank 0: cannot use {gone}" in ended.err
    assert "of the train data: No such file or directory; repair it or take it out of the filelist" in ended.err


def test_storage_that_hangs_ends_the_run_and_is_named(config: Path, tree: Path, tmp_path: Path) -> None:
    pipe = images(tree)[5]
    pipe.unlink()
    os.mkfifo(pipe)
    how = ["--set", "data.stall_timeout_s=4"]
    ended = finish(train(1, "-c", config, "-l", tmp_path / "run", *how), BOUNDED_S)
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert "waiting for the input: of the next " in last and f"{pipe}: no answer in 10 s" in last
    assert "data.stall_timeout_s is how long to wait" in last


def test_a_rank_that_is_stopped_ends_the_run(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ranks = Processes(tmp_path / "pids")
    process = train(3, "-c", config, "-l", run_dir, "--set", "data.stall_timeout_s=4", **ranks.environ)
    wait_for(lambda: steps(run_dir) >= 3, process)
    ranks.signal(signal.SIGSTOP, 2)
    ended = finish(process, BOUNDED_S)
    assert ended.code != 0
    assert "this rank's own step does not end, or another rank has stopped" in ended.err
    wait_for(lambda: not ranks.running())


def test_a_rank_that_is_killed_ends_the_run(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ranks = Processes(tmp_path / "pids")
    process = train(3, "-c", config, "-l", run_dir, **ranks.environ)
    wait_for(lambda: steps(run_dir) >= 3, process)
    ranks.signal(signal.SIGKILL, 2)
    ended = finish(process, BOUNDED_S)
    assert ended.code != 0
    assert "signal 9" in ended.err + ended.out
    wait_for(lambda: not ranks.running())


def test_what_was_seen_and_what_was_left_out_is_the_whole_list(config: Path, tree: Path, tmp_path: Path) -> None:
    """Of each epoch, over two ranks; also where a run goes on."""
    bad = images(tree)[3:40:12]
    for path in bad:
        path.write_bytes(b"not an image")
    run_dir = tmp_path / "run"
    how = ["--set", "data.on_error=skip", "--set", "data.max_bad_fraction=0.2"]
    assert finish(train(2, "-c", config, "-l", run_dir, *how, "--set", "training.epochs=1")).code == 0
    ended = finish(train(2, "-c", config, "-l", run_dir, *how, "--resume"))
    assert ended.code == 0, ended.err
    data = load_config(config).data
    catalog = load_catalog(data, "train", World())
    order = catalog.order(data)
    lines = [line.split("\t") for line in (run_dir / "bad_files.txt").read_text().splitlines()]
    assert lines[0] == ["step", "rank", "split", "position", "file", "reason"]
    dropped = Counter(int(line[3]) for line in lines[1:])
    seen = Counter(position for _, position, _ in trained(run_dir))
    whole = range(max(seen) // order.count * order.count)
    assert len(whole) >= 2 * order.count
    assert {place: seen[place] + dropped[place] for place in whole} == dict.fromkeys(whole, 1)
    for _, rank, split, position, file, reason in lines[1:]:
        assert int(position) % 2 == int(rank) and split == "train"
        assert Path(file) in bad and "Unknown image file format" in reason
        assert file == catalog.paths[int(order.items(np.array([int(position)]))[0])]
    logged = [line["dropped_images"] for line in read_metrics(run_dir)]
    assert sum(logged) == len(lines) - 1 and min(logged) > 0
    assert "images were left out, see " in ended.err


def test_too_many_bad_files_end_the_run(config: Path, tree: Path, tmp_path: Path) -> None:
    for path in images(tree)[::4]:
        path.write_bytes(b"not an image")
    ended = run_train("-c", config, "-l", tmp_path / "run", "--set", "data.on_error=skip")
    assert ended.code == 1
    assert "train samples cannot be used, more than the 0.01 that data.max_bad_fraction lets be left out" in ended.err
    assert (tmp_path / "run/bad_files.txt").read_text().count("not an image") == 0


def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(config: Path, tmp_path: Path) -> None:
    """By a limit to the size of files, which is met as a full disk is: a write fails."""
    run_dir = tmp_path / "run"
    limited = 'ulimit -f 64; exec "$@"'
    how = ["-c", config, "-l", run_dir, "--set", "training.epochs=1"]
    ended = run("bash", "-c", limited, "bash", sys.executable, ROOT / "train.py", *how, **COLD)
    assert "cannot write a checkpoint after epoch 1, step 15" in ended.err
    assert "the last one, if any, is kept, and training goes on" in ended.err
    assert not list((run_dir / "checkpoints").glob("*.npz"))
    assert steps(run_dir) > 30


def test_a_directory_in_use_is_refused(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = train(1, "-c", config, "-l", run_dir, "--set", "training.epochs=50")
    wait_for((run_dir / "lock").exists, process)
    second = run_train("-c", config, "-l", run_dir, "--resume", "auto")
    assert second.code == 2 and "is training in this directory already" in second.err
    process.send_signal(signal.SIGKILL)
    finish(process)
    again = run_train("-c", config, "-l", run_dir, "--resume", "auto", "--set", "training.epochs=1")
    assert again.code == 0, again.err
    assert json.loads((run_dir / "config.json").read_text())["training"]["epochs"] == 1
