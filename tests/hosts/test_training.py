"""Trainings on several hosts, each with its own address, name and /tmp, by jobs/mpirun.sh and sshd."""

import re
import signal
import subprocess
import sys

import pytest

from tests.hosts.conftest import Lab
from tests.support.commands import COLD, finish
from tests.support.runs import check_epoch, check_tests, read_intervals, steps, trained, wait_for
from tfpipe.data.runtime.clock import DELAY_MS
from tfpipe.errors import Stopped

# Each read takes 60 ms on these hosts (support/hosts.py).
SLOW = "data.parallel.read=1 data.prefetch_buffer_size=2"


@pytest.mark.full("starts 12 ranks on three hosts; test_mpi.py and test_resume.py have them on one")
@pytest.mark.parametrize("collectives", ["horovod", "tensorflow"])
def test_three_hosts_of_two_ranks_stop_and_two_of_three_go_on(lab: Lab, collectives: str) -> None:
    """The other collectives resume the run."""
    job = lab.train("node1:2,node2:2,node3:2", 6, SLOW, f"training.collectives={collectives}")
    wait_for(lambda: steps(lab.run_dir) >= 5, job)
    lab.hosts.signal(job, signal.SIGUSR1)
    told = finish(job)
    assert told.code == Stopped.exit_code, told.err
    reached = steps(lab.run_dir)
    assert len(trained(lab.run_dir)) == reached * 6 * 4 < 342
    other = "tensorflow" if collectives == "horovod" else "horovod"
    done = finish(lab.train("node3:3,node1:3", 6, f"training.collectives={other}"))
    assert done.code == 0, done.err
    assert f"resumes after {reached} steps" in done.err and "bit-identical on all 6 ranks" in done.err
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)
    last = read_intervals(lab.run_dir)[-1]["interval"]["ranks"]
    assert [rank["host"] for rank in last] == ["node3"] * 3 + ["node1"] * 3


@pytest.mark.full(
    "starts 10 ranks on three hosts; jobs/test_scripts.py has the script's part with a stand-in for mpirun"
)
@pytest.mark.parametrize(
    ("fault", "lost", "collectives"),
    [
        ("kill", "node2", "horovod"),
        ("kill", "node2", "tensorflow"),
        ("cut", "node3", "horovod"),
        ("cut", "node3", "tensorflow"),
        ("cut", "node1", "horovod"),
    ],
)
def test_a_lost_host_is_named_and_the_others_go_on_by_themselves(
    lab: Lab, fault: str, lost: str, collectives: str
) -> None:
    """All of its processes are killed, or its network drops all packets; rank 0 is on node1."""
    job = lab.train("node1:2,node2:2,node3:2", 6, SLOW, f"training.collectives={collectives}")
    wait_for(lambda: steps(lab.run_dir) >= 10, job)
    getattr(lab.hosts, fault)(lost)
    done = finish(job)
    assert done.code == 0, done.err
    left = " ".join(node for node in ("node1", "node2", "node3") if node != lost)
    assert f"job: {lost} does not answer; resumes on {left}" in done.out
    (after,) = re.findall(r"resumes after (\d+) steps", done.err)
    assert int(after) == 8 and "bit-identical on all 4 ranks" in done.err
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)


@pytest.mark.full("starts ranks on three hosts; faults/test_ranks.py has them on one")
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_three_hosts_train_without_mpi_name_a_lost_one_and_two_go_on(lab: Lab, backend: str) -> None:
    """A rank a host, as srun or torchrun start them, but each for itself: no launcher ends the others."""
    cold = COLD if backend != "tensorflow" else {}
    shared = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "KERAS_BACKEND": backend, **cold}

    def start(nodes: list[str], *overrides: str) -> list["subprocess.Popen[str]"]:
        words = [word for text in (*overrides, "training.collectives=auto") for word in ("--set", text)]
        train = [sys.executable if cold else "python", "train.py", "-c", lab.config, "-l", lab.run_dir, *words]
        environ = {"WORLD_SIZE": str(len(nodes)), DELAY_MS: "60", **shared}
        return [
            lab.hosts.start(node, *train, "--resume", "auto", RANK=str(rank), TORCHELASTIC_RUN_ID=nodes[-1], **environ)
            for rank, node in enumerate(nodes)
        ]

    first, second, lost = start(["node1", "node2", "node3"], *SLOW.split())
    wait_for(lambda: steps(lab.run_dir) >= 10, first)
    lab.hosts.kill("node3")
    ended = [finish(rank) for rank in (first, second, lost)]
    assert [rank.code for rank in ended[:2]] == [1, 1], ended
    assert "tfpipe: error: rank 1: rank 2 on host node3 has ended without a word" in ended[1].err
    done = [finish(rank) for rank in start(["node2", "node1"])]
    assert [rank.code for rank in done] == [0, 0], done
    assert "resumes after 8 steps" in done[0].err and "bit-identical on all 2 ranks" in done[0].err
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)
