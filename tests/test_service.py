"""Trainings with servers of their own, as real processes: all samples once, and nothing left running."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.commands import ROOT, Processes, finish, is_running, start
from tests.support.runs import check_epoch, steps, trained, wait_for
from tests.support.sample import SampleData
from tfpipe.cli import main
from tfpipe.data.service import workers as servers
from tfpipe.errors import Stopped


class Training(NamedTuple):
    """A training with servers of its own."""

    process: subprocess.Popen[str]
    ranks: Processes
    run_dir: Path

    @property
    def pid(self) -> int:
        return self.ranks.pids()[0]

    def servers(self) -> list[int]:
        """The processes of its servers that run."""
        found = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                with suppress(OSError):  # it has just ended
                    if b"serve\0worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(child)
        return found


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Path:
    """More epochs than a test waits for, of 192 images; the list names each image twice."""
    (tmp_path / "list.txt").write_text(sample.train.read_text() * 2)
    data = {"train_filelist": "list.txt", "test_filelist": None, "batch_size": 4, "service": 2}
    return sample.config(tmp_path / "c.json", data=data, training={"epochs": 30, "log_positions": True})


@pytest.fixture
def training(config: Path, tmp_path: Path) -> Iterator[Training]:
    """A training that is under way. It is ended after a test that has failed to."""
    ranks, run_dir = Processes(tmp_path / "pids"), tmp_path / "run"
    process = start(sys.executable, ROOT / "train.py", "-c", config, "-l", run_dir, **ranks.environ)
    try:
        wait_for(lambda: len(trained(run_dir)) >= 20, process)
        yield Training(process, ranks, run_dir)
    finally:
        process.kill()


def test_a_training_outlives_its_killed_worker_and_leaves_none(training: Training, config: Path) -> None:
    """A signal to stop goes to all processes of a job: the servers leave it to the training, which saves its state."""
    process, run_dir = training.process, training.run_dir
    first = training.servers()
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: len(training.servers()) == 2 and first[0] not in training.servers(), process)
    # No batches of so many epochs were under way when the worker was killed.
    wait_for(lambda: steps(run_dir) >= 4 * 57, process)
    now = training.servers()
    for pid in (*now, training.pid):
        os.kill(pid, signal.SIGTERM)
    done = finish(process)
    assert done.code == Stopped.exit_code, done.err
    assert "no image is lost or comes twice" in done.err and "Traceback" not in done.err
    assert list((run_dir / "checkpoints").glob("step-*.npz"))
    check_epoch(run_dir, config)
    wait_for(lambda: not any(map(is_running, {*first, *now})))


@pytest.mark.full("a server's way to end with its parent is tested below without TensorFlow")
def test_nothing_is_left_of_a_training_that_is_killed(training: Training) -> None:
    theirs = training.servers()
    assert len(theirs) == 2
    training.ranks.signal(signal.SIGKILL)
    assert finish(training.process).code == -signal.SIGKILL
    wait_for(lambda: not any(map(is_running, theirs)))


STARTING = """#!/bin/sh
for signal in HUP INT TERM USR1 USR2; do kill -$signal $$; done
echo starts
"""


def test_a_server_leaves_the_signals_of_a_job_to_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before its Python has come to any code of its own."""
    (tmp_path / "python").write_text(STARTING)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    server = servers._start()
    assert server.communicate() == ("starts\n", None) and server.returncode == 0


# A parent that starts a process with the server's way to end, and tells its process number.
CHILD = """
import os, time
from tfpipe.data.service.server import exit_with_parent
exit_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_server_ends_with_its_parent_and_not_before() -> None:
    parent = start(sys.executable, "-c", PARENT, CHILD)
    try:
        server = int(parent.stdout.readline())
        time.sleep(0.7)  # it looks every half second
        assert is_running(server)
    finally:
        parent.kill()
        parent.communicate()
    wait_for(lambda: not is_running(server))


def test_a_port_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which the command sets
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "worker", "--port", str(port)]) == 2
    said = f"cannot serve on port {port}: Address already in use; give another --port"
    assert said in capsys.readouterr().err
