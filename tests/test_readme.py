"""A reader who follows the README from top to bottom: every command in it runs, and does what is said."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MPI_ENVIRON, ROOT, SampleData, finish, start
from tests.test_main_job import make_blood
from tfpipe.data.filelist import scan, write_filelist

pytestmark = [pytest.mark.mpi, pytest.mark.alone, pytest.mark.timeout(1800)]
# What `make test` itself has done before this runs, or is.
MADE = ("make ", "pip install ")
# Added to a command, so that it takes seconds: its point is the command, not the figures.
SHORTER = {
    "imagenet_resnet50.json": "--set training.epochs=1 --set training.steps_per_epoch=1 --set data.batch_size=2",
    "bccd.json": "--set training.epochs=1 --set training.steps_per_epoch=2",
    "train.py": "--set training.epochs=1 --set training.steps_per_epoch=42 --set data.batch_size=8",
    "tfpipe bench": "--seconds 0.3 --repeats 1",
}
# What a command leaves or prints.
LEAVES = {
    "tfpipe filelist /data": "lists/train.txt",
    "tfpipe index": "lists/train.index.parquet",
    "tfpipe view": "batch.png",
    "tfpipe pack": "packed/train.json",
    "tfpipe stage": "local/scratch/data/train.txt",
    "--resume": "runs/one/model.keras",
    "--plot": "timelines.png",
}


def commands() -> Iterator[str]:
    """The commands in the README's blocks, as they stand there."""
    for block in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#.*", "", line).strip()
            if command:
                yield " ".join(command.split())


@pytest.fixture
def clone(tmp_path: Path, sample: SampleData) -> Path:
    """What a reader has: a clone with the data of `make train`, here small, ImageNet, BCCD, and a config."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "train.py").symlink_to(ROOT / "train.py")
    shutil.copytree(sample.root, folder / "data/sample")
    shutil.copytree(sample.root, tmp_path / "data/ILSVRC")
    for split, images in scan(folder / "data/sample", show=False).items():
        write_filelist(folder / f"data/sample/lists/{split}.txt", images)
    make_blood(folder / "BCCD_Dataset/BCCD")
    listed = {"train_filelist": "lists/train.txt", "crop_image_size": [32, 32], "batch_size": 8}
    (folder / "config.json").write_text(json.dumps({"data": listed, "model": {"args": {"width": 8}}}))
    return folder


def prepared(command: str, tmp_path: Path) -> str:
    """With this machine's paths, and so that it does not take long."""
    more = next((more for part, more in SHORTER.items() if part in command), "")
    command = re.sub(r"(?<![\w.])/(data|local)/", f"{tmp_path}/\\1/", command).replace("CONFIG", "configs/sample.json")
    # mpirun knows by its environment that more ranks than cores are fine.
    return f"{command.replace('--bind-to none ', '')} {more}".strip()


def test_every_command_of_the_readme_runs(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, words in {"tfpipe": "-m tfpipe.cli", "python": ""}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tools / name).chmod(0o755)
    environ = {**MPI_ENVIRON, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    ran = []
    for command in commands():
        if command.startswith(MADE):
            continue
        words = ["bash", "-c", f"cd {clone} && {prepared(command, tmp_path)}"]
        process = start(*words, **environ)
        if command.startswith("tfpipe serve"):
            assert process.stdout.readline().startswith("serving at ")
            subprocess.run(["pkill", "-P", str(process.pid)], check=False)
            process.terminate()
            finish(process)
        else:
            done = finish(process)
            assert done.code == 0, f"{words[-1]}\n{done.out}\n{done.err}"
        for part, left in LEAVES.items():
            if part in command:
                assert (clone / left).exists() or (tmp_path / left).exists(), command
        ran.append(command)
    assert len(ran) >= 20 and all(any(part in command for command in ran) for part in LEAVES)
