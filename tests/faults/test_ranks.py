"""Faults of one rank of two: the other one ends in bounded time, with a message that names the rank.

The ranks of Horovod and MPI are mpirun's, which ends the others; the ranks of the other collectives are processes of
their own, as under srun without --kill-on-bad-exit.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.commands import COLD, ROOT, Processes, end, finish, is_running, start, start_ranks
from tests.support.runs import LATE, SLOWLY, steps, wait_for
from tests.support.sample import TINY, SampleData
from tfpipe.errors import Stopped

COLLECTIVES = ("horovod", "mpi", "tensorflow", "jax", "torch")
BY_MPIRUN = ("horovod", "mpi")
LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "1"}
RANK1 = f"rank 1 on host {socket.gethostname()}"


class Pair(NamedTuple):
    """Two ranks of a run: the processes that the test has started, mpirun or both ranks, and those of the ranks."""

    started: list["subprocess.Popen[str]"]
    pids: Callable[[], dict[int, int]]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pids()[1], number)


Start = Callable[..., Pair]


@pytest.fixture
def start_pair(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Starts train.py ARGS on two ranks; waits until they have trained three steps if the run is a slow one."""

    def start_both(collectives: str, config: Path, *args: str) -> Pair:
        words = [sys.executable, ROOT / "train.py", "-c", config, "-l", tmp_path / "run", *args]
        words += ["--set", f"training.collectives={collectives}"]
        warm = Processes(tmp_path / "pids")
        environ = warm.environ | (LATE if SLOWLY[-1] in args else {})
        if collectives in BY_MPIRUN:
            pair = Pair([start_ranks(2, *words, **environ)], warm.pids)
        else:
            cold = collectives != "tensorflow"
            environ |= LAUNCH | {"KERAS_BACKEND": collectives} | (COLD if cold else {})
            started = [start(*words, RANK=str(rank), **environ) for rank in range(2)]
            pair = Pair(started, (lambda: {rank: started[rank].pid for rank in range(2)}) if cold else warm.pids)
        request.addfinalizer(lambda: [end(process) for process in pair.started if process.poll() is None])
        if SLOWLY[-1] in args:
            wait_for(lambda: steps(tmp_path / "run") >= 3, pair.started[0])
        return pair

    return start_both


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Path:
    """Many steps; all images are whole."""
    (tmp_path / "list.txt").write_text(sample.train.read_text() * 3)
    data = {"train_filelist": "list.txt", "test_filelist": None, "batch_size": 4, "crop_image_size": [16, 16]}
    return sample.config(tmp_path / "c.json", data=data, training={"epochs": 2, "log_positions": True})


def dear(*cheap: str) -> list:
    """The collectives; those that are not `cheap` are for the full run."""
    reason = pytest.mark.full("two cold starts or a long wait; training/monitor/test_peers.py has the watch itself")
    return [name if name in cheap else pytest.param(name, marks=reason) for name in COLLECTIVES]


@pytest.mark.parametrize("collectives", dear("horovod", "tensorflow"))
def test_a_killed_rank_is_named(config: Path, start_pair: Start, collectives: str) -> None:
    pair = start_pair(collectives, config, *SLOWLY)
    pair.signal(signal.SIGKILL)
    first, *second = (finish(process) for process in pair.started)
    assert first.code not in (0, Stopped.exit_code)
    if collectives in BY_MPIRUN:
        assert "rank 1" in first.err and "signal 9" in first.err + first.out
    else:
        assert f"tfpipe: error: rank 0: {RANK1} has ended without a word" in first.err
        assert [rank.code for rank in second] == [-signal.SIGKILL]
    wait_for(lambda: not any(map(is_running, pair.pids().values())))


@pytest.mark.parametrize("collectives", dear("horovod"))
def test_a_file_that_one_rank_cannot_use_is_named_on_both(
    sample: SampleData, tmp_path: Path, start_pair: Start, collectives: str
) -> None:
    listed = sample.train.read_text().splitlines()
    listed[1] += ".gone"
    (tmp_path / "list.txt").write_text("\n".join(listed))
    data = {"train_filelist": "list.txt", "test_filelist": None, "shuffle_buffer": 0, "batch_size": 4}
    pair = start_pair(collectives, sample.config(tmp_path / "c.json", data=data, model=TINY))
    ended = [finish(process) for process in pair.started]
    assert all(each.code == 1 for each in ended), ended
    for each in ended:
        # A line may begin with the end of Open MPI's own text, which has no line's end.
        last = [line for line in each.err.splitlines() if "tfpipe: error: " in line][-1]
        assert "rank 1" in last and f"cannot use {listed[1]}" in last and "take it out of the filelist" in last


@pytest.mark.parametrize("collectives", dear())
def test_a_rank_that_is_stopped_is_named(config: Path, start_pair: Start, collectives: str) -> None:
    pair = start_pair(collectives, config, *SLOWLY, "--set", "data.stall_timeout_s=15")
    pair.signal(signal.SIGSTOP)
    first = finish(pair.started[0])
    assert first.code == 1
    assert f"tfpipe: error: rank 0: {RANK1} has not run for " in first.err and "it is stopped, or hangs" in first.err
    if collectives not in BY_MPIRUN:  # whose mpirun ends it
        pair.signal(signal.SIGKILL)
