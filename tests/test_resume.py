"""Interrupted runs, as real processes: what they trained before and after is each sample of the epoch exactly once."""

import errno
import gzip
import json
import os
import re
import signal
import zipfile
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from tests.support.archives import tar_bytes
from tests.support.commands import end, finish, run_train
from tests.support.runs import check_epoch, epoch_of, interrupted, read_metrics, steps, train, trained, wait_for
from tests.support.sample import TINY, SampleData
from tfpipe.cli import main
from tfpipe.errors import Stopped
from tfpipe.training.saved import saved_step
from tfpipe.util.tensorflow_api import is_op_determinism_enabled


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Path:
    """Two epochs of 288 images."""
    (tmp_path / "list.txt").write_text(sample.train.read_text() * 3)
    training = {"epochs": 2, "log_positions": True, "checkpoint": {"every_steps": 8}}
    data = {"train_filelist": "list.txt", "test_filelist": None, "batch_size": 4}
    return sample.config(tmp_path / "c.json", data=data, training=training)


@pytest.mark.parametrize(
    ("unit", "before", "after"),
    [
        ("image", "horovod", "tensorflow"),
        pytest.param(
            "box",
            "tensorflow",
            "horovod",
            marks=pytest.mark.full("the stream is the same, and test_order.py has the order of boxes"),
        ),
    ],
)
def test_three_ranks_are_killed_and_two_with_other_collectives_go_on(
    config: Path, tmp_path: Path, unit: str, before: str, after: str
) -> None:
    run_dir, how = tmp_path / "run", f"data.unit={unit}"
    by = ("--set", f"training.collectives={before}")
    killed = interrupted(3, config, run_dir, 12, signal.SIGKILL, "--set", how, *by)
    assert killed.code not in (0, Stopped.exit_code)
    reached = steps(run_dir)
    sets = (how, "data.batch_size=6", f"training.collectives={after}")
    words = [word for text in sets for word in ("--set", text)]
    resumed = finish(train(2, "-c", config, "-l", run_dir, "--resume", *words))
    assert resumed.code == 0, resumed.err
    (step,) = re.findall(r"resumes after (\d+) steps", resumed.err)
    # The last checkpoint, or the one before if the ranks were killed while they wrote it.
    assert int(step) in (reached // 8 * 8, (reached - 1) // 8 * 8)
    check_epoch(run_dir, config, [how])
    assert steps(run_dir) > reached


def trained_by(run_dir: Path, rank: int) -> list[tuple[int, int, int]]:
    lines = (run_dir / f"positions-{rank}.csv").read_text().splitlines()[1:]
    return [tuple(map(int, line.split(","))) for line in lines]


@pytest.mark.parametrize(
    ("number", "collectives"),
    [
        (signal.SIGTERM, "horovod"),
        (signal.SIGTERM, "tensorflow"),
        pytest.param(
            signal.SIGUSR1,
            "horovod",
            marks=pytest.mark.full("jobs/test_scripts.py sends it to mpirun, and its ranks stop"),
        ),
    ],
)
def test_ranks_told_to_stop_lose_nothing(
    config: Path, tmp_path: Path, number: signal.Signals, collectives: str
) -> None:
    """mpirun passes SIGUSR1 on to all. SIGTERM would make it kill them: here it goes to one rank, as from srun."""
    run_dir = tmp_path / "run"
    told = interrupted(2, config, run_dir, 5, number, "--set", f"training.collectives={collectives}")
    assert told.code == Stopped.exit_code, told.err
    by = "a signal to another rank" if number == signal.SIGTERM else "SIGUSR1"
    assert f"tfpipe: {by}: stopped after epoch 1, step " in told.err
    assert told.err.count("finishes the step and saves") == (number == signal.SIGUSR1)
    before, reached = trained(run_dir), steps(run_dir)
    assert Counter(step for step, *_ in before) == dict.fromkeys(range(1, reached + 1), 8)
    assert (run_dir / f"checkpoints/step-{reached:09}.npz").exists()
    resumed = finish(train(1, "-c", config, "-l", run_dir, "--resume"))
    assert resumed.code == 0, resumed.err
    assert "a step was 2 ranks x 4, it is now 1 rank x 4" in resumed.err
    assert Counter(before) <= Counter(trained(run_dir))
    check_epoch(run_dir, config)


def test_two_ranks_on_an_archive_stop_and_one_goes_on(sample: SampleData, tmp_path: Path) -> None:
    """Images and XMLs from tar files in the form in which ImageNet is downloaded: every crop is used once."""
    classes, trees = tmp_path / "img_train.tar", sample.root
    members = {
        f"{folder.name}.tar": tar_bytes({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
        for folder in sorted((trees / "Data/CLS-LOC/train").iterdir())
    }
    classes.write_bytes(tar_bytes(members))
    xmls = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in trees.rglob("train/*/*.xml")}
    (tmp_path / "bbox.tar.gz").write_bytes(gzip.compress(tar_bytes(xmls)))
    data = {"source": {"kind": "archive", "path": "img_train.tar"}, "train_box_file": "bbox.tar.gz", "batch_size": 4}
    training = {"epochs": 2, "log_positions": True}
    no_lists = dict.fromkeys(("train_filelist", "test_filelist", "test_label_file"))
    config = sample.config(tmp_path / "c.json", data={**no_lists, **data}, training=training)
    slow = ("--set", 'callbacks=[{"name": "tests.support.own:Slow"}]')
    run_dir = tmp_path / "run"
    told = interrupted(2, config, run_dir, 5, signal.SIGTERM, slowly=slow)
    assert told.code == Stopped.exit_code, told.err
    resumed = finish(train(1, "-c", config, "-l", run_dir, "--resume"))
    assert resumed.code == 0, resumed.err
    assert "a step was 2 ranks x 4, it is now 1 rank x 4" in resumed.err
    check_epoch(run_dir, config)
    assert len(epoch_of(config)) > len(members) * 12, "some images have several crops"


def test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit(
    sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Dropout, Adam's slots, the schedule, the order and the epoch's metrics all resume.

    The run is told to stop in the middle of an epoch, and again after the last step of one, before its test pass. It
    says how it resumes, as a job script does it: --resume auto, until the code is 0.
    """
    config = sample.config(
        tmp_path / "c.json",
        data={"crop": "random_resized", "batch_size": 4},
        model={**TINY, "args": {"dropout": 0.5}, "freeze": 1},
        lr_schedule={"name": "CosineDecay"},
        training={"epochs": 3, "deterministic": True, "log_positions": True},
        metrics=[{"name": "tests.support.own:Recall"}],
    )
    whole, parts, auto = tmp_path / "whole", tmp_path / "parts", ("--resume", "auto")
    assert run_train("-c", config, "-l", whole).code == 0

    first = interrupted(1, config, parts, 5, signal.SIGTERM, *auto)
    assert first.code == Stopped.exit_code, first.err
    (said,) = [line for line in first.err.splitlines() if line.startswith("tfpipe:")]
    step = steps(parts)
    where = f"epoch {step // 24 + 1}, step {step % 24}" if step % 24 else f"epoch {step // 24}"
    hint = f"--resume continues from {parts}/checkpoints/step-{step:09}.npz"
    assert said == f"tfpipe: SIGTERM: stopped after {where}; {hint}"
    refused = ["train", "-c", str(config), "-l", str(parts)]
    assert main(refused) == 2
    assert "holds an earlier run; continue it with --resume" in capsys.readouterr().err
    assert main([*refused, *auto, "--set", "data.seed=1"]) == 2
    assert "data.seed: 0 then, 1 now" in capsys.readouterr().err

    second = interrupted(1, config, parts, 24, signal.SIGINT, "--resume")
    assert second.code == Stopped.exit_code, second.err
    assert step < steps(parts) < 72
    assert run_train("-c", config, "-l", parts, *auto).code == 0

    one, other = (keras.models.load_model(run_dir / "model.keras").get_weights() for run_dir in (whole, parts))
    for expected, got in zip(one, other, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert trained(parts) == trained(whole)
    for expected, got in zip(read_metrics(whole), read_metrics(parts), strict=True):
        assert got["test_images"] == expected["test_images"] == 37
        for name in ("epoch", "step", "loss", "top1", "top5", "recall", "test_loss", "test_top1"):
            assert got[name] == pytest.approx(expected[name], rel=1e-5), name

    before = {path: path.stat().st_mtime_ns for path in parts.rglob("*") if path.is_file()}
    assert main([*refused, *auto]) == 0
    assert not is_op_determinism_enabled(), "this process is as it was"
    assert "has ended, after 3 epochs" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in parts.rglob("*") if path.is_file()} == before
    # A run that is killed between its last checkpoint and the saving of the model has an older one.
    model = parts / "model.keras"
    assert saved_step(model) == 72
    with zipfile.ZipFile(model, "a") as archive:
        archive.comment = archive.comment.replace(b"72", b"48")
    assert saved_step(model) == 48
    assert run_train("-c", config, "-l", parts, *auto).code == 0
    assert saved_step(model) == 72
    longer = run_train("-c", config, "-l", parts, "--resume", "--set", "training.epochs=4")
    assert longer.code == 0, longer.err
    assert [line["epoch"] for line in read_metrics(parts)] == [1, 2, 3, 4]


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """16 images, of which every other one has 13 objects and the rest one; rank 0 of two has those of 13."""
    for folder in ("JPEGImages/a", "Annotations/a"):
        (tmp_path / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    box = "<xmin>2</xmin><ymin>2</ymin><xmax>20</xmax><ymax>20</ymax>"
    thing = f"<object><name>a</name><bndbox>{box}</bndbox></object>"
    for number in range(16):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(tmp_path / f"JPEGImages/a/{number}.jpg")
        text = f"<annotation>{thing * (13 if number % 2 == 0 else 1)}</annotation>"
        (tmp_path / f"Annotations/a/{number}.xml").write_text(text)
    (tmp_path / "list.txt").write_text("".join(f"JPEGImages/a/{number}.jpg\n" for number in range(16)))
    data = {
        "train_filelist": "list.txt",
        "test_filelist": "list.txt",
        "classes": ["a", "b"],
        "crop_image_size": [16, 16],
        "batch_size": 4,
        "scope": "shard",
    }
    training = {"log_positions": True, "epochs": 1}
    (tmp_path / "c.json").write_text(json.dumps({"data": data, "model": TINY, "training": training}))
    return tmp_path / "c.json"


def test_ranks_with_13_times_the_crops_hold_nobody_up(uneven: Path, tmp_path: Path) -> None:
    done = finish(train(2, "-c", uneven, "-l", tmp_path / "run"))
    assert done.code == 0, done.err
    assert "the list gives 112 of 16 images (exact)" in done.err
    (metrics,) = read_metrics(tmp_path / "run")
    assert (metrics["step"], metrics["test_images"], metrics["test_crops"]) == (14, 16, 112)
    for rank in range(2):
        mine = trained_by(tmp_path / "run", rank)
        assert [step for step, *_ in mine] == [step for step in range(1, 15) for _ in range(4)]
        assert {position % 2 for _, position, _ in mine} == {rank}
    # 14 steps of 4 crops: rank 0 is in the fifth of its 8 images of 13 crops, rank 1 has been through its own 7 times.
    assert max(position // 2 for _, position, _ in trained_by(tmp_path / "run", 0)) == 4
    assert max(position // 2 for _, position, _ in trained_by(tmp_path / "run", 1)) == 55


def test_another_signal_ends_a_run_at_once(config: Path, tmp_path: Path) -> None:
    """The run is stuck: the list's image is a pipe that nothing is written to."""
    pipe = tmp_path / "Data/CLS-LOC/train/n01440764/stuck.JPEG"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    (tmp_path / "stuck.txt").write_text(f"{pipe}\n")
    process = train(1, "-c", config, "-l", tmp_path / "run", "--set", "data.train_filelist=stuck.txt")
    written: list[int] = []
    wait_for(lambda: written or written.extend(writing(pipe)), process)
    try:
        process.send_signal(signal.SIGTERM)
        said = ""
        while "finishes the step and saves" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    finally:
        os.close(*written)
        said += end(process)
    assert "SIGTERM: finishes the step and saves" in said and "exits at once" in said


def writing(pipe: Path) -> list[int]:
    """Opens a pipe to write to it if there is a process that reads it."""
    try:
        return [os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)]
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return []
