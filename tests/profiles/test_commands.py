"""Every command that profiles/*.md, README.md's table and docs/ measure with runs, at its smallest size."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import ROOT, Finished, finish
from tests.support.documents import FENCE, Reader, matches
from tests.support.sample import SampleData
from tfpipe.data.catalog.filelist import write_filelist
from tfpipe.prepare.trees import scan

pytestmark = pytest.mark.full("takes minutes, and no part of tfpipe is tested that has no tests of its own")

WAIT_S = 300
PROFILES = ROOT / "profiles"
PAGES = sorted(PROFILES.glob("*.md"))
DOCUMENTS = [*PAGES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STAND_INS = Path(__file__).parent / "stand_ins"

# A model that is traced in no time, small crops.
TINY = "--set model.name=tests.support.models:tiny --set model.args={}"
SMALL_CROPS = "--set data.batch_size=8 --set data.crop_image_size=[32,32]"
ONE_TURN = "--turns 1 --seconds 0.1"
ONE_BENCH = "--seconds 0.1 --repeats 1"
RANDOM_ROWS = "loose loose_entries original_entries coefficients"
TABLES = '"Parquet S3 row groups" "Parquet Hub copied" "COCO Hub"'

# Put in the place of what a document leaves to its reader, or has made by an earlier command.
INSTEAD = {
    r"\S+/list(s/train)?\.txt": "LIST",
    r"\bLIST\b": "$PWD/lists/train.txt",
    r"\bFOLDER\b": "data/sample",
    r"\bCONFIG\b": "config.json",
    r"\b(DIR|packed)\b(?=$| -)": "made",
    r"peers/bin/python|\bPYTHON\b": "$PWD/peers-python",
    r"--bind-to none ": "",
    r"(tfpipe sample \S+) --images \d+": r"\1 --images 8 --scale 0.2",
    r"-n 63\b": "-n 1",
}
# Words that make a command small, by words of the command; of several rows the first counts. The words are appended, so
# they replace the same options of the command.
SMALL = {
    "profiles/accounting.py": f"--pairs 2 --set training.interval=2 {SMALL_CROPS} {TINY}",
    "profiles/annotations.py": f"--xmls 64 {ONE_TURN}",
    "profiles/archives.py": "--members 2000",
    "profiles/augment.py": f'--recipes "RandAugment(2, 9)" --peers "torch RandAugment" "keras plain" {ONE_TURN}',
    "profiles/augment_picture.py": "--only RandAugment GaussianBlur mixup -o picture.jpg",
    "profiles/collectives.py": "--turns 1 --steps 6 --model tests.support.models:tiny",
    "profiles/compare/run.py * --work random": f"--peers torch {RANDOM_ROWS} {ONE_TURN}",
    "profiles/compare/run.py * --work whole": f"--peers torch whole keras {ONE_TURN}",
    "profiles/compare/run.py * --work detect": f"--peers torch detect {ONE_TURN}",
    "profiles/compare/run.py * --peers tfpipe_index": ONE_TURN,
    "profiles/compare/run.py": f"--peers torch tfpipe tfpipe_graph tutorial tutorial_serial {ONE_TURN}",
    "profiles/decode.py": "--images 8 --turns 1",
    "profiles/decode_calls.py": "--threads 2 --calls 4 --turns 1",
    "profiles/decoders.py": "--images 8 --turns 1",
    "profiles/deviations.py": f"{ONE_TURN} --warm-up 0.1",
    "profiles/entries.py": "--images 8 --every 8 --turns 1",
    "profiles/epochs.py": f"--epochs 3 {SMALL_CROPS} {TINY}",
    "profiles/gpu.py": "--tiny --batch 8 --steps 2 --turns 1",
    "profiles/huge.py": "--threads 16 --batches 4",
    "profiles/index.py build": "--count 64 --repeats 1",
    "profiles/index.py load": "--rows 3000 --repeats 1",
    "profiles/loader.py": "--turns 1 --batches 4",
    "profiles/neighbour.py": f"-c config.json --steps 6 {ONE_TURN}",
    "profiles/order.py lists": "--counts 5000 --repeats 1",
    "profiles/order.py rate": "--repeats 1 --batches 2",
    "profiles/packed/run.py * --containers": f"--images 96 --rows tfrecord tfrecord_map flat npy npy-raw {ONE_TURN}",
    "profiles/packed/run.py": f"--images 96 --rows tfpipe tfpipe-raw loose tfdata npy-raw {ONE_TURN}",
    "profiles/pixel_copies.py": "--records 200 --places 1 4 --turns 1",
    "profiles/predict.py": "--images 96 --seconds 0.1 --repeats 1",
    "profiles/ranges.py": "--images 8 --turns 1 --cached",
    "profiles/reads.py": "--turns 1",
    "profiles/recipe.py": "-c config.json --list lists/train.txt --images 2 --recipes none MixUp --seeds 1 --epochs 1",
    "profiles/remote.py": "--kb 1 --files 40 --turns 1",
    "profiles/resize.py": "--images 64 --side 32 --turns 1",
    "profiles/resume.py": f"--turns 1 {SMALL_CROPS} {TINY}",
    "profiles/scale/catalog.py": "--counts 200 --ranks 2 --repeats 1",
    "profiles/scale/measure.py": f"--cores 0 --sizes 1 2 --delays-ms 0 1 --warm-up 0.1 --out measured.json {ONE_TURN}",
    "profiles/scale/operations.py": "--images 8",
    "profiles/scale/simulation.py --check": "",
    "profiles/scale/simulation.py --out": "--out scale.png --sizes 1 64",
    "profiles/scrape.py": ONE_TURN,
    "profiles/serial_parallel.py": "-c config.json --out . --steps 6 --traced 2:5",
    "profiles/sizes.py": f'--sizes "[[0, 16], [1, 32]]" --epochs 2 {TINY}',
    "profiles/sources.py bucket": "--crops 64 --turns 1 --latency-ms 1",
    "profiles/sources.py formats": "--crops 64 --turns 1",
    "profiles/storage.py": f"--reads 2 autotune --delay-ms 0 1 --warm-up 0.1 {ONE_TURN}",
    "profiles/tables.py": f"--only {TABLES} --turns 1 --latency-ms 1",
    "profiles/torch_batches.py": "--turns 1 --batches 4",
    "profiles/trainer.py": "--steps 2 --turns 1",
    "profiles/views.py": ONE_TURN,
    "train.py * --profile-ranks": f"{SMALL_CROPS} -n 8 --profile 4:7",
    "tfpipe report runs/x": "",
    "train.py -c configs/card.json": f"{SMALL_CROPS} {TINY} --set training.epochs=1 --set training.steps_per_epoch=2",
    "train.py -c configs/sample.json": f"{SMALL_CROPS} {TINY} --set training.epochs=1 --set training.steps_per_epoch=2",
    "FLAGS=": "",
    "tfpipe bench": ONE_BENCH,
    "tfpipe sample": "",
    "tfpipe pack -c": "",
}
# Commands whose output another one reads.
BEFORE = {"tfpipe report runs/x": "train.py * --profile-ranks"}
# PyTorch has to be imported before TensorFlow, and Keras for another backend.
COLD = ("profiles/gpu.py", "profiles/torch_batches.py", "profiles/trainer.py")
# Commands that are not run here, and why.
CANNOT = {
    "profiles/packed/read_by_others.py": "takes DALI and tf-models-official: test_what_is_missing_is_told",
    "make train": "test_main_job.py",
    "make test": "runs this; docs/test_docs.py looks its words up",
    "train.py -c configs/bccd.json": "docs/test_commands.py follows docs/data/filelists.md, with a stand-in of BCCD",
    "apt-get install": "installs from the network",
    "pip install": "installs from the network",
}


def code_blocks(path: Path) -> Iterator[str]:
    """Yields the commands in a document's shell blocks; a block that sets a variable is one command."""
    for _, language, block in FENCE.findall(path.read_text()):
        if language not in ("bash", "sh", "console"):
            continue
        lines = [re.sub(r"(^|\s+)# .*|(^|\s+)#$", "", line) for line in block.replace("\\\n", " ").splitlines()]
        if any(re.match(r"[A-Z]+=['\"]", line) for line in lines):
            yield "\n".join(lines)
        else:
            yield from (" ".join(line.split()) for line in lines if line)


def table_cells(path: Path) -> Iterator[str]:
    """Yields the commands in the last column of a document's tables, if that is headed "Command"."""
    for table in re.findall(r"(?:^\|.*\n)+", FENCE.sub("", path.read_text()), re.MULTILINE):
        head, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
        if head[-1] == "Command":
            yield from (code for row in rows for code in re.findall(r"`([^`]+)`", row[-1]))


def inline_code(path: Path) -> Iterator[str]:
    """Yields the commands in a document's text that run a script of profiles/."""
    for code in re.findall(r"`([^`]+)`", FENCE.sub("", path.read_text())):
        if re.match(r"python\s+profiles/", code):
            yield " ".join(code.split())


def documented() -> list[str]:
    """Returns the commands of profiles/*.md and of README.md's table, and all that run a script of profiles/."""
    found = [command for path in PAGES for command in code_blocks(path)]
    found += [cell for path in (*PAGES, ROOT / "README.md") for cell in table_cells(path)]
    for path in DOCUMENTS:
        found += inline_code(path)
        found += (command for command in code_blocks(path) if "profiles/" in command)
    return list(dict.fromkeys(found))


def row_of(command: str, rows: dict[str, str]) -> str | None:
    """Returns the first row of a table that a command belongs to."""
    return next((row for row in rows if matches(row, command)), None)


ALL = documented()
BY_ROW = {
    row: [command for command in ALL if row_of(command, CANNOT) is None and row_of(command, SMALL) == row]
    for row in SMALL
}


def prepared(command: str) -> str:
    """Returns a command with the paths of a test, at its smallest size."""
    row = row_of(command, SMALL)
    for pattern, other in INSTEAD.items():
        command = re.sub(pattern, other, command)
    return f"{command} {SMALL[row]}".strip()


@pytest.fixture(scope="module")
def data(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands take for granted: a small sample in the place of `make train`'s, and configs."""
    folder = tmp_path_factory.mktemp("profiles")
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(sample.root, folder / "data/sample")
    for split, images in scan(folder / "data/sample", show=False).items():
        write_filelist(folder / f"data/sample/lists/{split}.txt", images)
    (folder / "lists").symlink_to("data/sample/lists")
    sample.config(folder / "config.json", data={"train_filelist": "lists/train.txt", "batch_size": 8})
    return folder


@pytest.fixture
def reader(data: Path, tmp_path: Path) -> Reader:
    """A reader in a folder of its own, with stand-ins for a Python with OpenCV, and for nginx."""
    clone = tmp_path / "clone"
    shutil.copytree(data, clone, symlinks=True)
    for name in ("profiles", "train.py"):
        (clone / name).symlink_to(ROOT / name)
    write_program(clone / "peers-python", f'PYTHONPATH={STAND_INS}:$PYTHONPATH exec {sys.executable} "$@"')
    write_program(tmp_path / "bin/nginx", f'exec {sys.executable} {STAND_INS}/nginx.py "$@"')
    return Reader(tmp_path, None, [])  # without a bucket: no command here asks for it


def write_program(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def run(reader: Reader, command: str, python: str) -> Finished:
    """Runs a command to its end, with another program for the scripts of profiles/."""
    command = re.sub(r"\bpython (?=profiles/)", f"{python} ", command)
    return finish(reader.start(f"set -e\n{command}", "timeout", "-k", "30", str(WAIT_S)), WAIT_S + 60)


@pytest.mark.parametrize("row", SMALL)
def test_each_command_runs_and_prints_figures(reader: Reader, row: str) -> None:
    assert BY_ROW[row], "no document has such a command any more"
    python = f"{sys.executable if row in COLD else 'python'} {STAND_INS}/launch.py {reader.root}/bin/python"
    # Commands that are the same once they are small run once.
    for command in dict.fromkeys(map(prepared, [*BY_ROW.get(BEFORE.get(row), ()), *BY_ROW[row]])):
        done = run(reader, command, python)
        assert done.code == 0, f"{command}\n{done.out}\n{done.err}"
        assert re.search(r"\d", done.out), f"{command}\n{done.err}"


def test_each_command_has_a_row_and_each_row_a_command() -> None:
    unknown = [command for command in ALL if row_of(command, CANNOT) is None and row_of(command, SMALL) is None]
    assert unknown == []
    assert [row for row in CANNOT if not any(matches(row, command) for command in ALL)] == []


def test_each_script_is_documented() -> None:
    """All that read a command line; the others are started by these."""
    scripts = [path for path in PROFILES.rglob("*.py") if "ArgumentParser(" in path.read_text()]
    names = [str(path.relative_to(ROOT)) for path in scripts]
    assert len(names) > 40
    assert [name for name in names if not any(name in command for command in ALL)] == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("CUDA_VISIBLE_DEVICES= python profiles/gpu.py --out made", "torch sees no GPU here"),
        ("python profiles/compare/run.py LIST --peers-python nowhere", "nowhere is no Python that runs"),
        ("python profiles/packed/read_by_others.py DIR", "this Python lacks nvidia.dali; install"),
        ("PATH=/ python profiles/remote.py", "not on PATH: nginx, taskset; apt-get install nginx-light"),
    ],
)
def test_what_is_missing_is_told(reader: Reader, command: str, message: str) -> None:
    """In a line, before anything is measured."""
    write_program(reader.clone / "bare", f'exec {sys.executable} -S -E "$@"')
    for pattern, other in INSTEAD.items():
        command = re.sub(pattern, other, command)
    done = run(reader, command.replace(" bare", " ./bare"), sys.executable)
    assert done.code == 1 and done.out == ""
    last = done.err.splitlines()[-1]
    assert message in last and "Traceback" not in done.err, done.err
