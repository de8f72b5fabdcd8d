"""Interrupted runs, as real processes: what they trained before and after is each sample of the epoch exactly once."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from tests.support.commands import Finished, Processes, finish, run_train
from tests.support.runs import SLOW, check_epoch, read_metrics, steps, train, trained, wait_for
from tests.support.sample import TINY, SampleData
from tfpipe.errors import Stopped


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Path:
    """Two epochs of 480 images, 5 ms each, so that a run is still under way when a signal comes."""
    (tmp_path / "list.txt").write_text(sample.train.read_text() * 5)
    training = {"epochs": 2, "log_positions": True, "checkpoint": {"every_steps": 15}}
    data = {"train_filelist": "list.txt", "batch_size": 4, **SLOW}
    return sample.config(tmp_path / "c.json", data=data, training=training)


def interrupted(size: int, config: Path, run_dir: Path, after: int, number: signal.Signals, *args: str) -> Finished:
    """A run that gets a signal once it has trained `after` steps; SIGKILL goes to every rank, SIGTERM to the last."""
    ranks = Processes(config.parent / "pids")
    process = train(size, "-c", config, "-l", run_dir, *args, **ranks.environ)
    wait_for(lambda: steps(run_dir) >= after, process)
    if number == signal.SIGUSR1 or size == 1:
        process.send_signal(number)
    else:
        ranks.signal(number, *([] if number == signal.SIGKILL else [size - 1]))
    return finish(process)


@pytest.mark.parametrize("unit", ["image", "box"])
def test_three_ranks_are_killed_and_two_go_on(config: Path, tmp_path: Path, unit: str) -> None:
    run_dir, how = tmp_path / "run", f"data.unit={unit}"
    killed = interrupted(3, config, run_dir, 25, signal.SIGKILL, "--set", how)
    assert killed.code not in (0, Stopped.exit_code)
    reached = steps(run_dir)
    resumed = finish(train(2, "-c", config, "-l", run_dir, "--resume", "--set", how, "--set", "data.batch_size=6"))
    assert resumed.code == 0, resumed.err
    assert "goes on after 15 steps" in resumed.err or "goes on after 30 steps" in resumed.err
    check_epoch(run_dir, config, [how])
    assert steps(run_dir) > reached


def trained_by(run_dir: Path, rank: int) -> list[tuple[int, int, int]]:
    lines = (run_dir / f"positions-{rank}.csv").read_text().splitlines()[1:]
    return [tuple(map(int, line.split(","))) for line in lines]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_ranks_told_to_stop_lose_nothing(config: Path, tmp_path: Path, number: signal.Signals) -> None:
    """mpirun passes SIGUSR1 on to all. SIGTERM would make it kill them: here it goes to one rank, as from srun."""
    run_dir = tmp_path / "run"
    told = interrupted(3, config, run_dir, 20, number)
    assert told.code == Stopped.exit_code, told.err
    by = "another rank was told to stop" if number == signal.SIGTERM else "SIGUSR1"
    assert f"tfpipe: {by}: stopped after epoch 1, step " in told.err
    assert told.err.count("finishes the step and saves") == (number == signal.SIGUSR1)
    before, reached = trained(run_dir), steps(run_dir)
    assert Counter(step for step, *_ in before) == dict.fromkeys(range(1, reached + 1), 12)
    assert (run_dir / f"checkpoints/step-{reached:09}.npz").exists()
    resumed = finish(train(2, "-c", config, "-l", run_dir, "--resume"))
    assert resumed.code == 0, resumed.err
    assert "a step was 3 ranks x 4, it is now 2 ranks x 4" in resumed.err
    assert Counter(before) <= Counter(trained(run_dir))
    check_epoch(run_dir, config)


def test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit(sample: SampleData, tmp_path: Path) -> None:
    """Dropout, Adam's slots, the schedule, the order and the epoch's metrics all go on; interrupted twice."""
    config = sample.config(
        tmp_path / "c.json",
        data={"crop": "random_resized", "batch_size": 4, **SLOW},
        model={**TINY, "args": {"dropout": 0.5}},
        lr_schedule={"name": "CosineDecay"},
        training={"epochs": 3, "deterministic": True, "log_positions": True},
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_train("-c", config, "-l", whole).code == 0
    assert interrupted(1, config, parts, 10, signal.SIGTERM).code == Stopped.exit_code
    first = steps(parts)
    again = interrupted(1, config, parts, first + 20, signal.SIGINT, "--resume")
    assert again.code == Stopped.exit_code
    assert first < steps(parts) < 72
    assert run_train("-c", config, "-l", parts, "--resume").code == 0
    one, other = (keras.models.load_model(run_dir / "model.keras").get_weights() for run_dir in (whole, parts))
    for expected, got in zip(one, other, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert trained(parts) == trained(whole)
    for expected, got in zip(read_metrics(whole), read_metrics(parts), strict=True):
        for name in ("epoch", "step", "loss", "top1", "top5", "test_loss", "test_top1"):
            assert got[name] == pytest.approx(expected[name], rel=1e-5), name


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """32 images, of which every fourth has 13 objects and the others one; rank 0 of four has those of 13."""
    for folder in ("JPEGImages/a", "Annotations/a"):
        (tmp_path / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    box = "<xmin>2</xmin><ymin>2</ymin><xmax>20</xmax><ymax>20</ymax>"
    thing = f"<object><name>a</name><bndbox>{box}</bndbox></object>"
    for number in range(32):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(tmp_path / f"JPEGImages/a/{number}.jpg")
        text = f"<annotation>{thing * (13 if number % 4 == 0 else 1)}</annotation>"
        (tmp_path / f"Annotations/a/{number}.xml").write_text(text)
    (tmp_path / "list.txt").write_text("".join(f"JPEGImages/a/{number}.jpg\n" for number in range(32)))
    data = {
        "train_filelist": "list.txt",
        "test_filelist": "list.txt",
        "classes": ["a", "b"],
        "crop_image_size": [16, 16],
        "batch_size": 4,
        "scope": "shard",
    }
    training = {"epochs": 3, "log_positions": True}
    (tmp_path / "c.json").write_text(json.dumps({"data": data, "model": TINY, "training": training}))
    return tmp_path / "c.json"


def test_ranks_with_13_times_the_crops_hold_nobody_up(uneven: Path, tmp_path: Path) -> None:
    done = finish(train(4, "-c", uneven, "-l", tmp_path / "run"))
    assert done.code == 0, done.err
    assert "the list's 32 images give 128 (exact)" in done.err
    metrics = read_metrics(tmp_path / "run")
    assert [line["step"] for line in metrics] == [8, 16, 24]
    assert [(line["test_images"], line["test_crops"]) for line in metrics] == [(32, 128)] * 3
    for rank in range(4):
        mine = trained_by(tmp_path / "run", rank)
        assert [step for step, *_ in mine] == [step for step in range(1, 25) for _ in range(4)]
        assert {position % 4 for _, position, _ in mine} == {rank}
    # 24 steps of 4 crops: rank 0 has not been through its 8 images of 13 crops, the others have, 12 times.
    assert max(position // 4 for _, position, _ in trained_by(tmp_path / "run", 0)) == 7
    assert max(position // 4 for _, position, _ in trained_by(tmp_path / "run", 1)) == 95


def test_a_stopped_run_says_how_it_goes_on_and_a_complete_one_has_nothing_to_do(config: Path, tmp_path: Path) -> None:
    """What a job script does: resume, until the code is 0."""
    run_dir, auto = tmp_path / "run", ("--resume", "auto")
    told = interrupted(1, config, run_dir, 5, signal.SIGUSR1, *auto)
    assert told.code == Stopped.exit_code
    said = [line for line in told.err.splitlines() if line.startswith("tfpipe:")]
    assert len(said) == 1
    assert said[0].startswith("tfpipe: SIGUSR1: stopped after epoch 1, step ")
    assert f"--resume goes on from {run_dir}/checkpoints/step-" in said[0]
    refused = run_train("-c", config, "-l", run_dir)
    assert refused.code == 2 and "holds an earlier run; go on with --resume" in refused.err
    changed = run_train("-c", config, "-l", run_dir, *auto, "--set", "data.seed=1")
    assert changed.code == 2 and "data.seed: 0 then, 1 now" in changed.err
    assert run_train("-c", config, "-l", run_dir, *auto).code == 0
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    complete = run_train("-c", config, "-l", run_dir, *auto)
    assert complete.code == 0 and "has all of its 2 epochs already" in complete.err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    longer = run_train("-c", config, "-l", run_dir, "--resume", "--set", "training.epochs=3")
    assert longer.code == 0, longer.err
    assert [line["epoch"] for line in read_metrics(run_dir)] == [1, 2, 3]
    check_epoch(run_dir, config)


def test_a_run_stopped_before_its_test_pass_makes_up_for_it(sample: SampleData, tmp_path: Path) -> None:
    """Here in the last step of the epoch."""
    config = sample.config(tmp_path / "c.json", data=SLOW, training={"epochs": 2, "log_positions": True})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_train("-c", config, "-l", whole).code == 0
    last = read_metrics(whole)[0]["step"]
    told = interrupted(1, config, parts, last, signal.SIGUSR1)
    assert told.code == Stopped.exit_code, told.err
    resumed = run_train("-c", config, "-l", parts, "--resume")
    assert resumed.code == 0, resumed.err
    for expected, got in zip(read_metrics(whole), read_metrics(parts), strict=True):
        assert got["test_images"] == expected["test_images"] == 37
        assert got["loss"] == pytest.approx(expected["loss"], rel=1e-4)


@pytest.mark.parametrize("args", [("--resume",), ("--resume", "auto")])
def test_to_resume_there_must_be_a_run(config: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    nowhere = run_train("-c", config, *args)
    assert nowhere.code == 2 and "--resume needs --logdir" in nowhere.err
    if args == ("--resume",):
        none = run_train("-c", config, "-l", tmp_path / "none", *args)
        assert none.code == 2 and "holds no checkpoint to go on from; --resume auto would start anew" in none.err


def test_another_signal_ends_a_run_at_once(config: Path, tmp_path: Path) -> None:
    """Here while it is stuck: the list's first image is a pipe that nobody writes to."""
    pipe = tmp_path / "Data/CLS-LOC/train/n01440764/stuck.JPEG"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    (tmp_path / "stuck.txt").write_text(f"{pipe}\n")
    how = ("--set", "data.train_filelist=stuck.txt", "--set", "data.test_filelist=null")
    process = train(1, "-c", config, "-l", tmp_path / "run", *how)
    wait_for(lambda: (tmp_path / "run/config.json").exists(), process)
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    done = finish(process, timeout_s=20)
    assert time.monotonic() - started < 5
    assert done.code == 128 + signal.SIGTERM
    assert "SIGTERM: finishes the step and saves" in done.err and "exits at once" in done.err
