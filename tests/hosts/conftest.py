"""Hosts of their own for the tests, and trainings on them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.hosts import LOGIN, Hosts, make_hosts, missing
from tests.support.sample import SampleData


class Lab(NamedTuple):
    """Three hosts and a login host, a config of a training, and its run's directory."""

    hosts: Hosts
    config: Path
    run_dir: Path

    def settings(self, **settings: str) -> dict[str, str]:
        own = {"VENV": str(self.hosts.folder), "CONFIG": str(self.config), "RUN": str(self.run_dir)}
        return {**own, **settings}

    def train(self, places: str, ranks: int, *overrides: str) -> subprocess.Popen[str]:
        """Starts a training by jobs/mpirun.sh on HOST:RANKS,HOST:RANKS."""
        settings = self.settings(HOSTS=places, RANKS=str(ranks), SET=" ".join(overrides))
        return self.hosts.start(LOGIN, "jobs/mpirun.sh", **settings)


@pytest.fixture
def lab(sample: SampleData, tmp_path: Path) -> Iterator[Lab]:
    """Two epochs of 288 images, a checkpoint every 8 steps."""
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "list.txt").write_text(sample.train.read_text() * 3)
    config = sample.config(
        tmp_path / "c.json",
        data={"train_filelist": "list.txt", "batch_size": 4},
        training={"epochs": 2, "log_positions": True, "checkpoint": {"every_steps": 8}},
    )
    with make_hosts(tmp_path, [sample.root.parent]) as hosts:
        yield Lab(hosts, config, tmp_path / "run")
