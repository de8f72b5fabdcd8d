"""Trainings on several hosts, each with its own address, name and /tmp, by jobs/mpirun.sh and sshd."""

import re
import signal
from pathlib import Path

import pytest

from tests.hosts.conftest import Lab
from tests.support.commands import finish
from tests.support.hosts import LOGIN
from tests.support.runs import check_epoch, read_intervals, read_metrics, steps, trained, wait_for
from tfpipe import World, load_config
from tfpipe.data.catalog.boxes import read_boxes
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import Stopped

SLOW = "data.storage_delay_ms=60 data.parallel.read=1 data.prefetch_buffer_size=2"
WAIT_S = 240


def check_tests(run_dir: Path, config: Path) -> None:
    """Every test image and crop was counted once in each epoch."""
    split = load_split(load_config(config).data, "test", World())
    crops = len(read_boxes(split.catalog, split.storage, World()).images)
    assert [(line["test_images"], line["test_crops"]) for line in read_metrics(run_dir)] == [(37, crops)] * 2


@pytest.mark.full("starts 12 ranks on three hosts; test_mpi.py and test_resume.py have them on one")
def test_three_hosts_of_two_ranks_stop_and_two_of_three_go_on(lab: Lab) -> None:
    settings = lab.settings(HOSTS="node1:2,node2:2,node3:2", RANKS="6", SET=SLOW)
    job = lab.hosts.start(LOGIN, "jobs/mpirun.sh", **settings)
    wait_for(lambda: steps(lab.run_dir) >= 5, job, WAIT_S)
    lab.hosts.signal(job, signal.SIGUSR1)
    told = finish(job)
    assert told.code == Stopped.exit_code, told.err
    reached = steps(lab.run_dir)
    assert len(trained(lab.run_dir)) == reached * 6 * 4 < 342
    done = lab.train("node3:3,node1:3", 6)
    assert done.code == 0, done.err
    assert f"resumes after {reached} steps" in done.err and "bit-identical on all 6 ranks" in done.err
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)
    last = read_intervals(lab.run_dir)[-1]["interval"]["ranks"]
    assert [rank["host"] for rank in last] == ["node3"] * 3 + ["node1"] * 3


@pytest.mark.full(
    "starts 10 ranks on three hosts; jobs/test_scripts.py has the script's part with a stand-in for mpirun"
)
@pytest.mark.parametrize(("fault", "lost"), [("kill", "node2"), ("cut", "node3"), ("cut", "node1")])
def test_a_lost_host_is_named_and_the_others_go_on_by_themselves(lab: Lab, fault: str, lost: str) -> None:
    """All of its processes are killed, or its network drops all packets; rank 0 is on node1."""
    settings = lab.settings(HOSTS="node1:2,node2:2,node3:2", RANKS="6", SET=SLOW)
    job = lab.hosts.start(LOGIN, "jobs/mpirun.sh", **settings)
    wait_for(lambda: steps(lab.run_dir) >= 10, job, WAIT_S)
    getattr(lab.hosts, fault)(lost)
    done = finish(job, 500)
    assert done.code == 0, done.err
    left = " ".join(node for node in ("node1", "node2", "node3") if node != lost)
    assert f"job: {lost} does not answer; resumes on {left}" in done.out
    (after,) = re.findall(r"resumes after (\d+) steps", done.err)
    assert int(after) == 8 and "bit-identical on all 4 ranks" in done.err
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)
