"""Each fault in each tool ends as the table of docs/faults.md says: code, message, what is left, and no process."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.commands import ROOT, Finished, Processes, finish, start, start_ranks
from tests.support.faults import faulty
from tests.support.matrix import COMPLETE, FAULTS, FOUND, GOES_ON, REPORTED, RESUMES, SAVED, TOOLS, Row, cells, markdown
from tests.support.runs import read_metrics, wait_for
from tests.support.sample import SampleData

TRAINS = ("train", "test pass")
RESULTS = {
    **{"train": "run/model.keras", "test pass": "run/model.keras", "bench": "out.json", "view": "out.png"},
    **{"pack": "out/train.json", "index": "train.index.parquet", "check": "out.json", "stage": "out/train.txt"},
}
# Files that the tool writes and that the disk has no room for; never its lock, of which it compares the inode.
WRITTEN = {
    **{"train": "run/[!l]*", "test pass": "run/metrics.jsonl", "bench": "out.json", "view": ".out.png*"},
    **{"pack": "out/.train-*", "index": "*.parts/*", "check": "out.json", "stage": "out/.partial-*/*"},
}
RUNS = "tests/test_faults.py and tests/test_resume.py have it, with more of its circumstances"
FULL = {
    **{(tool, fault): RUNS for tool in TRAINS for fault in ("hang", "SIGTERM", "SIGKILL")},
    **{("train", fault): RUNS for fault in ("EIO", "full")},
    **{(tool, "EIO"): "the same retries as in pack" for tool in ("bench", "view", "index", "check", "stage")},
    "EMFILE": "the same retries as after EIO",
    "cut JPEG": "tests/faults/test_files.py has it, and more of them, in the tests' own process",
    "EACCES": "the same error, of the same open, as of a missing file",
}


class Cell(NamedTuple):
    """A tool, the folder that it works in, and the image and the XML there that have the fault."""

    tool: str
    folder: Path
    image: Path
    xml: Path

    @property
    def result(self) -> Path:
        """The file that is there once the tool has done its work."""
        return self.folder / RESULTS[self.tool]

    def command(self) -> list[str | Path]:
        train = ["-l", self.folder / "run", "--resume", "auto"]
        write = {
            "train": [*train, "--set", "data.test_filelist=null"],
            "test pass": train,
            "bench": ["--seconds", "0.2", "--repeats", "1", "--json", self.result],
            "view": ["-o", self.result, "--count", "100"],
            "pack": ["--out", self.folder / "out", "--shards", "4"],
            "index": ["--processes", "1"],
            "check": ["--processes", "1", "--json", self.result],
            "stage": ["--out", self.folder / "out", "--split", "train"],
        }[self.tool]
        tool = [ROOT / "train.py"] if self.tool in TRAINS else ["-m", "tfpipe", self.tool]
        return [sys.executable, *tool, "-c", self.folder / "c.json", *write]

    def at_fault(self, fault: str) -> Path:
        return self.xml if fault == "cut XML" else self.image

    def spoil(self, fault: str) -> None:
        """Puts the fault into the data, if it is one of the data."""
        path = self.at_fault(fault)
        if fault == "missing":
            path.unlink()
        elif fault.startswith("cut"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def rules(self, fault: str) -> list[str]:
        """Returns the rules of a fault of the storage; under a signal, a read does not end before it has come."""
        ends = self.tool in TRAINS
        whole = f"{self.image.parents[1] if self.image.parent.name[0] == 'n' else self.image.parent}/*.JPEG"
        kinds = {
            **{"EIO": f"EIO:500:{whole}", "EMFILE": f"EMFILE:500:{whole}", "EACCES": f"EACCES:0:{self.image}"},
            "hang": f"HANG:{0 if ends else 1500}:{self.image}",
            "full": f"FULL:0:{self.folder}/{WRITTEN[self.tool]}:w",
            "SIGTERM": f"HANG:{3000 if ends else 0}:{self.image}",
            "SIGKILL": f"HANG:0:{self.image}",
        }
        if fault == "EIO":
            read = [f"EIO:500:{self.folder}/{name}" for name in ("c.json", "*.txt")]
            written = ["run/metrics.jsonl", "run/*.keras"] if ends else [WRITTEN[self.tool]]
            return [kinds[fault], *read, *(f"EIO:500:{self.folder}/{name}:w" for name in written)]
        return [kinds[fault]] if fault in kinds else []

    def start(self, fault: str, *more: str, **environ: str) -> subprocess.Popen[str]:
        """Starts the tool, on two ranks if one of them is to be killed."""
        several = fault == "SIGKILL" and self.tool != "view"
        begin = partial(start_ranks, 2) if several else start
        return begin(*self.command(), *more, **environ)

    def run(self, fault: str) -> Finished:
        """Runs the tool under the fault to its end, after which none of its processes may run."""
        ranks, met = Processes(self.folder / "pids"), self.folder / "met"
        met.mkdir()
        environ = {**faulty(*self.rules(fault)), **ranks.environ, "TFPIPE_FAULTS_MET": str(met)}
        process = self.start(fault, *(["--set", "data.stall_timeout_s=2"] if fault == "hang" else []), **environ)
        if fault in ("SIGTERM", "SIGKILL"):
            wait_for(lambda: any(met.iterdir()), process)
            ranks.signal(signal.Signals[fault], max(ranks.pids()))
        ended = finish(process)
        wait_for(lambda: not ranks.running())
        return ended

    def check_complete(self) -> None:
        """Checks that the tool has done all of its work and left no temporary file."""
        assert [path for path in self.folder.rglob("*") if path.name.endswith((".partial", "lock"))] == []
        if self.tool in TRAINS:
            *_, epoch = read_metrics(self.folder / "run")
            assert epoch["epoch"] == 1 and epoch.get("test_images") == (37 if self.tool == "test pass" else None)
            assert self.result.exists()
        elif self.tool == "view":
            Image.open(self.result).load()
        elif self.tool == "bench":
            assert json.loads(self.result.read_text())["images_per_second"] > 0
        else:
            assert self.images() == 96

    def images(self) -> int:
        """Returns how many images the result of a tool that prepares data holds."""
        if self.tool == "index":
            return len(pq.read_table(self.result))
        if self.tool == "stage":
            return sum((self.result.parent / line).is_file() for line in self.result.read_text().splitlines())
        found = json.loads(self.result.read_text())
        return found["lists"][0]["images"] if self.tool == "check" else sum(one["records"] for one in found["shards"])


def parameters() -> Iterator[Any]:
    for row, tool in cells():
        reason = FULL.get(row.fault) or FULL.get((tool, row.fault))
        marks = [pytest.mark.full(reason)] if reason else []
        yield pytest.param(row, tool, marks=marks, id=f"{tool}-{row.fault}".replace(" ", "-"))


@pytest.mark.parametrize(("row", "tool"), list(parameters()))
def test_it_ends_as_the_table_says(row: Row, tool: str, tree: Path, tmp_path: Path) -> None:
    SampleData(tree, tmp_path / "train.txt", tmp_path / "val.txt").config(tmp_path / "c.json")
    split = "val" if tool == "test pass" else "train"
    image, xml = (sorted((tree / folder / split).rglob("*.*"))[3] for folder in ("Data/CLS-LOC", "Annotations/CLS-LOC"))
    cell = Cell(tool, tmp_path, image, xml)
    cell.spoil(row.fault)
    ended = cell.run(row.fault)
    said = f"{ended.out}\n{ended.err}"
    assert (128 - ended.code if ended.code < 0 else ended.code) == row.code, said
    if row.code in (1, 2):
        _, named, said = ended.err.rpartition("tfpipe: error: ")
        assert named and "Traceback" not in said, ended.err
    says = re.escape(row.says.replace("FILE", str(cell.at_fault(row.fault)))).replace(r"\.\.\.", ".*")
    assert re.search(says, said), said
    check_left(cell, row, ended)


def check_left(cell: Cell, row: Row, ended: Finished) -> None:
    """Checks what the table says is there afterwards."""
    if row.left == COMPLETE:
        cell.check_complete()
    elif row.left == FOUND:
        (found,) = json.loads(cell.result.read_text())["lists"]
        assert [oddity["count"] for oddity in found["oddities"] if oddity["harm"] == "stops"] == [1]
    elif row.left == REPORTED:
        assert ("train: 96 images" if cell.tool == "check" else "images_per_second: ") in ended.out
        assert cell.result.read_text() == ""
    else:
        assert not cell.result.exists()
        assert bool(list(cell.folder.glob("run/checkpoints/*.npz"))) == (row.left == SAVED)
    if row.left in (SAVED, RESUMES, GOES_ON) and row.fault in ("full", "hang", "SIGTERM", "SIGKILL"):
        again = finish(cell.start(row.fault))
        assert again.code == 0, again.err
        cell.check_complete()


def test_the_table_has_each_fault_in_each_tool_once() -> None:
    assert sorted((row.fault, tool) for row, tool in cells()) == sorted(
        (fault, tool) for fault in FAULTS for tool in TOOLS
    )


def test_the_document_has_the_table() -> None:
    assert markdown() in (ROOT / "docs/faults.md").read_text(), "put tests.support.matrix.markdown() there"
