"""A reader who follows a document from top to bottom: its blocks, and its commands as this machine can run them."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import MPI_ENVIRON, ROOT, WARM, ensure_server, finish, start
from tests.support.server import Server

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

# Of a block of code: as many are seen in a window of 1,300 pixels, as tests/docs/test_site.py looks.
COLUMNS = 120

WAIT_S = 300

# What a test cannot run, and why.
CANNOT = {
    "make ": "`make train` is what the clone is prepared as; `make test` is what runs this",
    "pip install ": "installs from the network what `make test` has installed, or is",
    "module load ": "a cluster has modules; this machine need not",
    "sbatch ": "needs Slurm: tests/jobs runs the script with stand-ins for it, tests/slurm/run.sh in a real one",
}
# Put in a command's place: where one of its own counts would take minutes, or names a host.
INSTEAD = {
    r"\bxmls 100000\b": "xmls 300",
    r"\bpictures 20000\b": "pictures 60",
    r"\bmpirun -n (4|8|64)\b": "mpirun -n 2",
    r"\bCONFIG\b": "config.json",
    # mpirun knows by its environment that more ranks than cores are fine.
    r"--bind-to none ": "",
}
# Added to a command, so that it takes seconds: its point is the command, not the figures. Of several the first counts.
# The networks of the configs, which take long to trace, are trained in the full run.
NETWORK = (
    ""
    if os.environ.get("TFPIPE_TESTS") == "full"
    else "--set model.name=tests.support.models:tiny --set model.args={} "
)
STEPS = f"{NETWORK}--set training.epochs=1 --set data.batch_size=8 --set training.steps_per_epoch"
SHORTER = {
    "imagenet_resnet50.json": f"{STEPS}=1 --set data.crop_image_size=[32,32]",
    "configs/recipes/": f"{STEPS}=1 --set data.crop_image_size=[32,32]",
    "bccd.json": f"{STEPS}=2",
    "data.service=": f"{STEPS}=3 --set data.service=2",
    "torch_resnet18.py": "--steps 2 --width 4",
    "train.py * --profile": f"{STEPS}=42",
    "train.py": f"{STEPS}=3",
    "tfpipe bench": "--seconds 0.1 --repeats 1",
    "tfpipe tune": "--minutes 0.05 --pipeline-only",
    # Any port that is free.
    "tfpipe serve": "--host localhost --port 0",
    # Sums over two ranks if it is there, which costs little; but a test should not build it again if they fail to.
    "install_horovod.sh": "--dry-run",
}
# What a command leaves.
LEAVES = {
    "tfpipe filelist /data": "lists/train.txt",
    "tfpipe index": "lists/train.index.parquet",
    "tfpipe view": "batch.png",
    "tfpipe pack": "packed/train.json",
    "--split all --json": "found.json",
    "--fix-list": "lists/clean.txt",
    "tfpipe stage": "local/scratch/*/train.txt",
    "--resume": "runs/one/model.keras",
    "--html runs/x.html": "runs/x.html",
    "tfpipe evaluate": "evaluated.json",
    "tfpipe predict": "*.csv",
    "log_positions": "runs/*/positions-0.csv",
}


def blocks(path: Path, *languages: str) -> list[str]:
    return [body for _, language, body in FENCE.findall(path.read_text()) if language in languages]


def lines(path: Path) -> Iterator[str]:
    """Those of a document's shell blocks; a line that ends in a backslash continues."""
    for block in blocks(path, "bash", "sh", "console"):
        yield from block.replace("\\\n", " ").splitlines()


def commands(path: Path) -> list[str]:
    """The commands in a document's shell blocks, as they stand there but for comments and indentation."""
    found = (" ".join(re.sub(r"(^|\s+)#.*", "", line).split()) for line in lines(path))
    return [command for command in found if command]


def matches(part: str, command: str) -> bool:
    """Whether a key of a table is meant: the key's words come in the command, with anything in the place of a *."""
    return re.search(".*".join(map(re.escape, part.split("*"))), command) is not None


class Reader(NamedTuple):
    """Someone in a clone, with the data that the documents speak of under `root`, where they say / itself."""

    root: Path
    bucket: Server
    """A stand-in for one on S3: it serves /data."""
    addresses: list[str]
    """Addresses of the workers that have been started."""

    @property
    def clone(self) -> Path:
        return self.root / "clone"

    @property
    def environ(self) -> dict[str, str]:
        """Variables that find programs of this Python's, whether its environment is on PATH or not."""
        ensure_server()
        tools = self.root / "bin"
        tools.mkdir(exist_ok=True)
        for name, words in {"tfpipe": "-m tfpipe", "python": "", "torchrun": "-m torch.distributed.run"}.items():
            python = shlex.join([sys.executable] if name == "torchrun" else WARM)
            (tools / name).write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            (tools / name).chmod(0o755)
        path = f"{tools}:{os.environ['PATH']}:{Path(sys.executable).parent}"
        return {**MPI_ENVIRON, "PATH": path, "PYTHONPATH": str(ROOT)}

    def prepared(self, command: str) -> str:
        """The command with this machine's paths and addresses, and so that it does not take long."""
        more = next((more for part, more in SHORTER.items() if matches(part, command)), "")
        for pattern, other in INSTEAD.items():
            command = re.sub(pattern, other, command)
        command = re.sub(r"(?<![\w.])/(data|local)/", f"{self.root}/\\1/", command)
        command = command.replace("s3://imagenet", self.bucket.url)
        if self.addresses:
            command = re.sub(r"\bnode\d+:\d+\b", self.addresses[0], command)
        return f"{command} {more}".strip()

    def start(self, command: str, *before: str) -> subprocess.Popen[str]:
        """Starts a command in the clone; the words `before` come before the shell's."""
        return start(*before, "bash", "-c", f"cd {shlex.quote(str(self.clone))} && {command}", **self.environ)

    def run(self, command: str) -> None:
        """Runs a document's command, which must succeed and leave what it is there for."""
        prepared, began_s = self.prepared(command), time.monotonic()
        # timeout: where a launcher hangs, its ranks are told to end too.
        done = finish(self.start(prepared, "timeout", "-k", "30", str(WAIT_S)), WAIT_S + 60)
        print(f"{time.monotonic() - began_s:6.1f} s  {prepared}")
        assert done.code == 0, f"{prepared}\n{done.out}\n{done.err}"
        for part, left in LEAVES.items():
            if matches(part, command):
                assert any(next(folder.glob(left), None) for folder in (self.clone, self.root)), f"{command}: no {left}"

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """Runs one that serves until it is ended."""
        # exec: what is ended is the server, not the shell that started it.
        process = self.start(f"exec {self.prepared(command)}")
        try:
            said = process.stdout.readline()
            assert said.startswith("serving at "), f"{command}\n{said}\n{finish(process).err}"
            self.addresses.append(said.split()[-1])
            yield
            assert process.poll() is None, f"{command} has ended\n{finish(process).err}"
        finally:
            process.terminate()
            finish(process)
