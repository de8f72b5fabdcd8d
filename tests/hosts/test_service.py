"""`data.service` with workers on other hosts, of which one is lost."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hosts.conftest import Lab
from tests.support.commands import finish
from tests.support.hosts import LOGIN
from tests.support.runs import check_epoch, steps, wait_for
from tfpipe.data.runtime.clock import DELAY_MS


@contextmanager
def worker(lab: Lab, host: str) -> Iterator[None]:
    """Runs a worker on a host, with which it ends."""
    process = lab.hosts.start(host, "python", "-m", "tfpipe", "serve", "worker", "--port", "5000")
    assert process.stdout is not None and process.stderr is not None, "pipes"
    with process.stdout, process.stderr:
        assert process.stdout.readline() == f"serving at {host}:5000\n", process.stderr.read()
        yield
    process.kill()
    process.wait()


@pytest.fixture
def served(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """A training on the login host, under way, whose workers are on the nodes."""
    with worker(lab, "node1"), worker(lab, "node2"), worker(lab, "node3"):
        sets = ['data.service=["node1:5000","node2:5000","node3:5000"]', "training.epochs=10"]
        words = [word for each in sets for word in ("--set", each)]
        process = lab.hosts.start(
            LOGIN, "python", "train.py", "-c", lab.config, "-l", lab.run_dir, *words, **{DELAY_MS: "0"}
        )
        wait_for(lambda: steps(lab.run_dir) >= 10, process)
        yield process


@pytest.mark.full("starts workers on three hosts; tests/data/service has them on one")
@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_a_lost_host_of_a_worker_costs_no_sample(lab: Lab, served: subprocess.Popen[str], fault: str) -> None:
    getattr(lab.hosts, fault)("node2")
    done = finish(served)
    assert done.code == 0, done.err
    assert "worker 2 of 3, at node2:5000" in done.err and "no image is lost or comes twice" in done.err
    check_epoch(lab.run_dir, lab.config)
