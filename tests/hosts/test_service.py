"""`data.service` with workers on other hosts, of which one is lost."""

import subprocess

import pytest

from tests.hosts.conftest import Lab
from tests.support.commands import finish
from tests.support.hosts import LOGIN
from tests.support.runs import check_epoch, steps, wait_for

WAIT_S = 240


def serve(lab: Lab, host: str) -> subprocess.Popen[str]:
    """Starts a worker on a host; returns once it serves."""
    worker = lab.hosts.start(host, "python", "-m", "tfpipe", "serve", "worker", "--port", "5000")
    assert worker.stdout is not None
    assert worker.stdout.readline() == f"serving at {host}:5000\n", worker.communicate()
    return worker


@pytest.mark.full("starts workers on three hosts; tests/data/service has them on one")
@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_a_lost_host_of_a_worker_costs_no_sample(lab: Lab, fault: str) -> None:
    workers = [serve(lab, host) for host in ("node1", "node2", "node3")]
    try:
        address = '["node1:5000","node2:5000","node3:5000"]'
        sets = [f"data.service.address={address}", "data.service.timeout_s=20", "training.epochs=10"]
        words = [word for each in sets for word in ("--set", each)]
        train = ("python", "train.py", "-c", lab.config, "-l", lab.run_dir, *words)
        process = lab.hosts.start(LOGIN, *train)
        wait_for(lambda: steps(lab.run_dir) >= 10, process, WAIT_S)
        getattr(lab.hosts, fault)("node2")
        done = finish(process, 500)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert done.code == 0, done.err
    assert "worker 2 of 3, at node2:5000" in done.err and "no image is lost or comes twice" in done.err
    check_epoch(lab.run_dir, lab.config)
