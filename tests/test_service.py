"""Trainings with servers of their own, as real processes: all samples once, and nothing left running."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.commands import ROOT, finish, run, start
from tests.support.runs import check_epoch, trained, wait_for
from tests.support.sample import SampleData
from tfpipe.cli import main
from tfpipe.errors import Stopped

WAIT_S = 400
Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Path:
    """Two epochs of 480 images; the list names each image five times."""
    (tmp_path / "list.txt").write_text(sample.train.read_text() * 5)
    data = {"train_filelist": "list.txt", "batch_size": 4, "service": {"workers": 2}}
    return sample.config(tmp_path / "c.json", data=data, training={"epochs": 2, "log_positions": True})


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts trainings, and ends those that a failed test has left."""
    begun = []

    def train(*args: str | Path) -> subprocess.Popen[str]:
        begun.append(start(sys.executable, ROOT / "train.py", *args))
        return begun[-1]

    yield train
    for process in begun:
        process.kill()


def children(pid: int) -> list[int]:
    """The servers that a process has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            with suppress(OSError):  # it has just ended
                if b"serve\0worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_training_outlives_its_killed_worker(begin: Begin, config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = begin("-c", config, "-l", run_dir)
    wait_for(lambda: len(trained(run_dir)) >= 100, process, WAIT_S)
    servers = children(process.pid)
    assert len(servers) == 2
    os.kill(servers[0], signal.SIGKILL)
    wait_for(lambda: len(children(process.pid)) == 2 and servers[0] not in children(process.pid), process, WAIT_S)
    servers += children(process.pid)
    done = finish(process)
    assert done.code == 0, done.err
    assert "no image is lost or comes twice" in done.err and "Traceback" not in done.err
    check_epoch(run_dir, config)
    wait_for(lambda: not running(servers), timeout_s=WAIT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_training_that_is_ended(
    begin: Begin, config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """A signal to stop goes to all processes of a job: the servers leave it to the training, which saves its state."""
    run_dir = tmp_path / "run"
    process = begin("-c", config, "-l", run_dir)
    wait_for(lambda: len(trained(run_dir)) >= 20, process, WAIT_S)
    servers = children(process.pid)
    assert len(servers) == 2
    for pid in [*servers, process.pid] if number == signal.SIGTERM else [process.pid]:
        os.kill(pid, number)
    done = finish(process)
    assert done.code == (Stopped.exit_code if number == signal.SIGTERM else -signal.SIGKILL), done.err
    wait_for(lambda: not running(servers), timeout_s=WAIT_S)
    if number == signal.SIGTERM:
        assert "goes on at" not in done.err
        assert list((run_dir / "checkpoints").glob("step-*.npz"))


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(sys.executable, "-m", "tfpipe", "serve", "worker", "--port", str(port))
    assert done.code == 2
    assert f"cannot serve on port {port}: Address already in use; give another --port" in done.err


def test_there_is_no_dispatcher(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "dispatcher"]) == 2
    assert "list the addresses that they print in data.service.address" in capsys.readouterr().err
