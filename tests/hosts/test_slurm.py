"""jobs/slurm.sh in a real Slurm with a slurmd on each of three hosts."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.conftest import Lab
from tests.hosts.slurm import Slurm, make_slurm, missing_tool
from tests.hosts.test_training import SLOW
from tests.support.runs import check_epoch, check_tests, steps

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
WAIT_S = 400


@pytest.fixture
def slurm(lab: Lab) -> Iterator[Slurm]:
    """A node that has been silent for a minute is down, not for five."""
    if reason := missing_tool():
        pytest.skip(reason)
    with make_slurm(lab.hosts, slurmd_timeout_s=60) as slurm:
        yield slurm


def submit(lab: Lab, slurm: Slurm, log: Path, collectives: str = "horovod") -> str:
    """Submits jobs/slurm.sh on three nodes of two ranks, without PMIx if not for Horovod; returns the job's number."""
    words = ["--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=00:30:00", f"--output={log}"]
    mpi = "pmix" if collectives == "horovod" else "none"
    settings = lab.settings(MPI=mpi, SET=f"{SLOW} training.collectives={collectives}")
    return slurm.run("sbatch", "--parsable", *words, "jobs/slurm.sh", **settings)


def wait_for_steps(lab: Lab, count: int, log: Path) -> None:
    until_s = time.monotonic() + WAIT_S
    while steps(lab.run_dir) < count:
        assert time.monotonic() < until_s, log.exists() and log.read_text()
        time.sleep(0.2)


def wait_for_end(slurm: Slurm, job: str, log: Path) -> dict[str, str]:
    until_s = time.monotonic() + WAIT_S
    while (state := slurm.state(job))["JobState"] not in ENDED:
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(2)
    return state


@pytest.mark.full("starts a Slurm of three hosts; jobs/test_scripts.py has the script with stand-ins")
@pytest.mark.parametrize("collectives", ["horovod", "tensorflow"])
def test_a_job_is_signalled_queued_again_and_finished(lab: Lab, slurm: Slurm, tmp_path: Path, collectives: str) -> None:
    log = tmp_path / "job.log"
    job = submit(lab, slurm, log, collectives)
    wait_for_steps(lab, 5, log)
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    state = wait_for_end(slurm, job, log)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log.read_text()
    assert "not all epochs are trained; queues the job again" in log.read_text()
    assert "bit-identical on all 6 ranks" in log.read_text()
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)


@pytest.mark.full("starts a Slurm of three hosts; jobs/test_scripts.py has the script with stand-ins")
@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_a_job_that_loses_a_node_goes_on_in_its_allocation(lab: Lab, slurm: Slurm, tmp_path: Path, fault: str) -> None:
    log = tmp_path / "job.log"
    job = submit(lab, slurm, log)
    wait_for_steps(lab, 10, log)
    getattr(lab.hosts, fault)("node2")
    state = wait_for_end(slurm, job, log)
    text = log.read_text()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "0"), text
    assert "job: node2 does not answer; resumes on node1 node3" in text
    (after,) = re.findall(r"resumes after (\d+) steps", text)
    assert int(after) == 8 and "bit-identical on all 4 ranks" in text
    check_epoch(lab.run_dir, lab.config)
    check_tests(lab.run_dir, lab.config)
