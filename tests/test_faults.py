"""Faults under a real run: files that go, storage that hangs, ranks that die or stop, disks that are full."""

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import ROOT, WARM, Processes, finish, run, run_train
from tests.support.faults import faulty
from tests.support.runs import LATE, SLOWLY, check_epoch, read_metrics, steps, train, trained, wait_for
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.cli import main
from tfpipe.data.sources.registry import load_split

# No file of this process may grow beyond 256 KiB.
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def config(sample: SampleData, tree: Path, tmp_path: Path) -> Path:
    """Many steps of images that may be spoilt, each named three times in the list."""
    (tmp_path / "list.txt").write_text((tmp_path / "train.txt").read_text() * 3)
    training = {"epochs": 2, "log_positions": True, "interval": 40, "checkpoint": {"every_steps": 15}}
    data = {"train_filelist": "list.txt", "test_filelist": None, "batch_size": 4, "crop": "full"}
    return sample.config(tmp_path / "c.json", data=data, training=training)


def images(tree: Path) -> list[Path]:
    return sorted((tree / "Data/CLS-LOC/train").rglob("*.JPEG"))


@pytest.mark.parametrize(
    "what",
    ["file", pytest.param("folder", marks=pytest.mark.full("a file is named by the same path if its folder goes"))],
)
def test_what_goes_in_mid_epoch_is_named(config: Path, tree: Path, tmp_path: Path, what: str) -> None:
    process = train(1, "-c", config, "-l", tmp_path / "run", *SLOWLY, **LATE)
    wait_for(lambda: steps(tmp_path / "run") >= 3, process)
    gone = images(tree)[5] if what == "file" else images(tree)[5].parent
    gone.rename(gone.with_name("away"))
    ended = finish(process)
    assert ended.code == 1
    assert f"rank 0: cannot use {gone}" in ended.err
    assert "of the train data: No such file or directory; repair it or take it out of the filelist" in ended.err


def test_storage_that_hangs_ends_the_run_and_is_named(config: Path, tree: Path, tmp_path: Path) -> None:
    pipe = images(tree)[5]
    pipe.unlink()
    os.mkfifo(pipe)
    ended = finish(train(1, "-c", config, "-l", tmp_path / "run", "--set", "data.stall_timeout_s=3"))
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert "waiting for the input: 1 of the next " in last and f"{pipe}: no answer in 10 s" in last
    assert "data.stall_timeout_s is how long to wait" in last


def test_storage_that_hangs_after_the_last_step_loses_nothing(config: Path, tree: Path, tmp_path: Path) -> None:
    """The pipeline reads ahead what no step needs any more: the run has all it trains on, and ends well."""
    data = load_config(config).data
    split = load_split(data, "train", World())
    pipe = Path(split.catalog.paths[int(split.order.items(np.array([40]))[0])])
    pipe.unlink()
    os.mkfifo(pipe)
    args = ("-c", config, "-l", tmp_path / "run", "--set", "data.prefetch_buffer_size=2")
    short = ("--set", "training.epochs=1", "--set", "training.steps_per_epoch=2", "--set", "data.stall_timeout_s=3")
    ended = finish(train(1, *args, *short))
    assert ended.code == 0 and steps(tmp_path / "run") == 2, ended.err
    assert (tmp_path / "run/model.keras").exists()


def test_what_was_seen_and_what_was_left_out_is_the_whole_list(config: Path, tree: Path, tmp_path: Path) -> None:
    """Two ranks train an epoch, and one process resumes."""
    bad = images(tree)[3:40:18]
    for path in bad:
        path.write_bytes(b"not an image")
    run_dir = tmp_path / "run"
    how = ["--set", "data.on_error=skip", "--set", "data.max_bad_fraction=0.2"]
    assert finish(train(2, "-c", config, "-l", run_dir, *how, "--set", "training.epochs=1")).code == 0
    reached = steps(run_dir)
    ended = run_train("-c", config, "-l", run_dir, *how, "--resume")
    assert ended.code == 0, ended.err
    lines = check_left_out(config, run_dir, bad)
    assert {rank for _, rank, *_ in lines} == {"0", "1"} and int(lines[-1][0]) > reached
    assert all(int(rank) == (int(position) % 2 if int(step) <= reached else 0) for step, rank, _, position, *_ in lines)
    assert "left out, see " in ended.err


def test_what_a_killed_run_had_left_out_still_counts(config: Path, tree: Path, tmp_path: Path) -> None:
    """It is killed between two counts, and after two checkpoints."""
    bad = images(tree)[3:60:9]
    for path in bad:
        path.write_bytes(b"not an image")
    run_dir = tmp_path / "run"
    how = ["--set", "data.on_error=skip", "--set", "data.max_bad_fraction=0.2"]
    ranks = Processes(tmp_path / "pids")
    process = train(1, "-c", config, "-l", run_dir, *how, *SLOWLY, **LATE, **ranks.environ)
    wait_for(lambda: (run_dir / "checkpoints/step-000000030.npz").exists(), process)
    ranks.signal(signal.SIGKILL)
    finish(process)
    ended = run_train("-c", config, "-l", run_dir, *how, "--resume")
    assert ended.code == 0, ended.err
    assert min(int(step) for step, *_ in check_left_out(config, run_dir, bad)) <= 30


@pytest.mark.parametrize("fault", ["EIO", "EMFILE"])
@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_fault_that_passes_costs_no_image(config: Path, tmp_path: Path, on_error: str, fault: str) -> None:
    run_dir = tmp_path / "run"
    how = ["--set", f"data.on_error={on_error}", "--set", "data.max_bad_fraction=0", "--set", "training.epochs=1"]
    ended = run_train("-c", config, "-l", run_dir, *how, **faulty(f"{fault}:500:*.JPEG"))
    assert ended.code == 0 and "tries again in 1 s" in ended.err, ended.err
    seen = [position for _, position, _ in trained(run_dir)]
    assert sorted(seen) == list(range(len(seen))) and not (run_dir / "bad_files.txt").exists()


def check_left_out(config: Path, run_dir: Path, bad: list[Path]) -> list[list[str]]:
    """Checks that each sample was either trained or is in bad_files.txt, whose lines it returns, and was counted."""
    data = load_config(config).data
    loaded = load_split(data, "train", World())
    order = loaded.order
    head, *lines = (line.split("\t") for line in (run_dir / "bad_files.txt").read_text().splitlines())
    assert head == ["step", "rank", "split", "position", "file", "reason"]
    dropped = Counter(int(line[3]) for line in lines)
    seen = Counter(position for _, position, _ in trained(run_dir))
    whole = range(max(seen) // order.count * order.count)
    assert len(whole) >= 2 * order.count
    assert {place: seen[place] + dropped[place] for place in whole} == dict.fromkeys(whole, 1)
    for _, _, split, position, file, reason in lines:
        assert Path(file) in bad and reason.startswith("it is no ") and split == "train"
        assert file == loaded.catalog.paths[int(order.items(np.array([int(position)]))[0])]
    logged = [line["dropped_images"] for line in read_metrics(run_dir)]
    assert sum(logged) == len(lines) and min(logged) > 0
    return lines


def test_too_many_bad_files_end_the_run(config: Path, tree: Path, tmp_path: Path) -> None:
    for path in images(tree)[::4]:
        path.write_bytes(b"not an image")
    ended = run_train("-c", config, "-l", tmp_path / "run", "--set", "data.on_error=skip")
    assert ended.code == 1
    assert re.search(r"train samples cannot be used, and data\.max_bad_fraction 0\.01 allows \d+;", ended.err)
    assert (tmp_path / "run/bad_files.txt").read_text().count("not an image") == 0


def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(config: Path, tmp_path: Path) -> None:
    """A limit to the size of files is met as a full disk is: a write fails. A model has a third of a checkpoint."""
    run_dir = tmp_path / "run"
    overrides = ["training.epochs=1", "data.num_classes=4000", "optimizer.name=Adam"]
    how = [word for override in overrides for word in ("--set", override)]
    ended = run(*WARM, "-c", LIMITED, ROOT / "train.py", "-c", config, "-l", run_dir, *how)
    assert ended.code == 0, ended.err
    assert "cannot write a checkpoint after epoch 1, step 15" in ended.err
    assert "the last one, if any, is kept, and training continues" in ended.err
    assert not list((run_dir / "checkpoints").glob("*.npz"))
    assert steps(run_dir) == 72 and (run_dir / "model.keras").stat().st_size > 64 << 10


def test_a_run_whose_directory_is_full_says_so_and_goes_on_later(config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    args = ("-c", config, "-l", run_dir, "--resume", "auto", "--set", "training.epochs=1")
    ended = run_train(*args, **faulty("FULL:0:*/run/positions-*:w"))
    last = ended.err.splitlines()[-1]
    assert ended.code == 2 and last.startswith("tfpipe: error: ")
    assert str(run_dir) in last and "No space left on device" in last
    assert run_train(*args).code == 0
    assert (run_dir / "positions-0.csv").read_text().startswith("step,position,crop\n1,")
    check_epoch(run_dir, config)


def test_a_directory_in_use_is_refused(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    process = train(1, "-c", config, "-l", run_dir, *SLOWLY, "--set", "training.epochs=50", **LATE)
    wait_for((run_dir / "config.json").exists, process)
    assert main(["train", "-c", str(config), "-l", str(run_dir), "--resume", "auto"]) == 2
    assert "is training in this directory already" in capsys.readouterr().err
    process.send_signal(signal.SIGKILL)
    finish(process)
    again = run_train("-c", config, "-l", run_dir, "--resume", "auto", "--set", "training.epochs=1")
    assert again.code == 0, again.err
    assert json.loads((run_dir / "config.json").read_text())["training"]["epochs"] == 1
