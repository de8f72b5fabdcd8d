"""Data made in code, and the command lines the tests run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# How long an example takes says nothing on a machine that is busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


# The ALCF tutorial's own config, as it stands there.
TUTORIAL = {
    "data": {
        "handler": "ilsvrc_dataset",
        "batch_size": 128,
        "train_filelist": "/lus/theta-fs0/software/datascience/ImageNet/ILSVRC/ilsvrc_train_filelist.txt",
        "test_filelist": "/lus/theta-fs0/software/datascience/ImageNet/ILSVRC/ilsvrc_val_filelist.txt",
        "shuffle_buffer": 200000,
        "reshuffle_each_iteration": True,
        "num_parallel_readers": 1,
        "prefectch_buffer_size": 0,
        "crop_image_size": [256, 256],
        "num_classes": 1000,
        "num_channels": 3,
    }
}


class Finished(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


# More ranks than cores, and a container's root, are fine for tests. In the environment, since MPICH's mpirun refuses
# Open MPI's flags.
MPI_ENVIRON = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def start(*command: str | Path, **environ: str) -> subprocess.Popen[str]:
    """Starts a command from an unrelated directory's point of view, as a user would."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    words = [str(part) for part in command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(process: subprocess.Popen[str], timeout_s: float = 300) -> Finished:
    """Waits for it to end, and ends it if that takes too long."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Finished(process.returncode, out, err)


def run(*command: str | Path, **environ: str) -> Finished:
    """Runs a command to its end."""
    return finish(start(*command, **environ))


def run_train(*args: str | Path, **environ: str) -> Finished:
    """python train.py ARGS, in one process."""
    return run(sys.executable, ROOT / "train.py", *args, **environ)


def start_ranks(size: int, *command: str | Path, **environ: str) -> subprocess.Popen[str]:
    """`command` on `size` ranks under mpirun."""
    beside = str(Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ["PATH"]]))
    assert mpirun, "mpirun is not on PATH; make test installs it"
    return start(mpirun, "-n", str(size), *command, **MPI_ENVIRON, **environ)


def run_ranks(size: int, *command: str | Path, **environ: str) -> Finished:
    """The same, to its end."""
    return finish(start_ranks(size, *command, **environ))


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The epochs' lines of a run's metrics.jsonl."""
    return [line for line in read_lines(run_dir) if not {"interval", "stall"} & line.keys()]


def read_intervals(run_dir: Path) -> list[dict[str, Any]]:
    """The intervals' lines."""
    return [line for line in read_lines(run_dir) if "interval" in line]


def read_lines(run_dir: Path) -> list[dict[str, Any]]:
    """A run's whole metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


class SampleData(NamedTuple):
    """A small data set in ImageNet's layout, with its filelists."""

    root: Path
    train: Path
    val: Path

    @property
    def classes(self) -> list[str]:
        """The names of its folders, sorted."""
        return sorted(path.name for path in (self.root / "Data/CLS-LOC/train").iterdir())

    def config(self, path: Path, **sections: Any) -> Path:
        """Writes a config for it at `path`: small and quick unless `sections` say otherwise."""
        data = {
            "train_filelist": str(self.train),
            "test_filelist": str(self.val),
            "test_label_file": str(self.root / "LOC_val_solution.csv"),
            "crop_image_size": [32, 32],
            "batch_size": 16,
            **sections.pop("data", {}),
        }
        whole = {"model": {"args": {"width": 8}}, "training": {"epochs": 1}, **sections, "data": data}
        path.write_text(json.dumps(whole))
        return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast ones first: what trains or starts ranks waits until the rest has passed."""
    items.sort(key=lambda item: any(item.get_closest_marker(name) for name in ("slow", "alone", "mpi")))


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """96 training and 37 validation images of 8 classes, at a fifth of the size."""
    from tfpipe.data.filelist import scan, write_filelist
    from tfpipe.tools.sample import write_sample

    root = tmp_path_factory.mktemp("sample")
    write_sample(root / "tree", images=96, val_images=37, scale=0.2)
    lists = {split: root / f"{split}.txt" for split in ("train", "val")}
    for split, images in scan(root / "tree", show=False).items():
        write_filelist(lists[split], images)
    return SampleData(root / "tree", lists["train"], lists["val"])


@pytest.fixture
def tree(sample: SampleData, tmp_path: Path) -> Path:
    """A copy of the sample that may be spoilt."""
    shutil.copytree(sample.root, tmp_path / "tree")
    for split in ("train", "val"):
        lines = (sample.root.parent / f"{split}.txt").read_text()
        (tmp_path / f"{split}.txt").write_text(lines.replace(str(sample.root), str(tmp_path / "tree")))
    return tmp_path / "tree"
