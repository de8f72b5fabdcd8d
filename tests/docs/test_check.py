"""docs/check.md shows what check prints."""

import json
import os
import shutil
import textwrap
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.documents import COLUMNS, blocks
from tests.support.images import encoded, picture
from tfpipe.cli import main

ODD = ("cat/9.psd", "dog/8.mp4", "cat/Thumbs.db", "dog/.DS_Store", "@eaDir/cat/1.jpg", "notes.txt", "dog/README",
       "fox/.keep", "train.catalog/a.npy")  # fmt: skip


def plant(pets: Path) -> None:
    """Makes the folder that the page speaks of."""
    images = {
        f"{name}/{number}.jpg": 100 * place + number for place, name in enumerate(("cat", "dog")) for number in range(3)
    }
    images |= {"cat /4.jpg": 400, "preview.jpg": 5}
    for name in (*images, *ODD):
        (pets / name).parent.mkdir(parents=True, exist_ok=True)
        (pets / name).write_bytes(encoded(picture(24, 32, images[name])) if name in images else b"x")


def shown_of(part: str) -> tuple[str, list[str]]:
    """Returns the command of the page's block whose command has this part, and what it prints."""
    found = [block.strip().splitlines() for block in blocks(ROOT / "docs/check.md", "text")]
    ((command, *shown),) = (lines for lines in found if part in lines[0])
    return command, shown


def test_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = shown_of("--strict")
    plant(tmp_path / "pets")
    data = {"source": {"kind": "folders", "path": "pets"}, "crop_image_size": [32, 32], "batch_size": 4}
    (tmp_path / "config.json").write_text(json.dumps({"data": data}))
    words = command.removeprefix("$ tfpipe ").replace("config.json", str(tmp_path / "config.json")).split()
    assert main(words) == 1
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), printed.err.splitlines()[-1]]
    lines = [line.replace(f"{tmp_path}/", "") for line in lines]
    assert [part for line in lines for part in textwrap.wrap(line, COLUMNS)] == shown
    assert main([word for word in words if word != "--strict"]) == 0


# BCCD's photographs are not in the repository: its test runs where this names the folder with JPEGImages in it.
BCCD = os.environ.get("TFPIPE_BCCD")


def printed_for(name: str, source: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns what the page's command prints if the lists of `source` are where configs/`name`.json has them."""
    (root / "configs").mkdir()
    shutil.copy(ROOT / f"configs/{name}.json", root / "configs")
    assert main(["filelist", str(source), "--out", str(root / f"data/{name}/lists")]) == 0
    capsys.readouterr()
    command = shown_of(f"{name}.json")[0].removeprefix("$ tfpipe ").replace("configs/", f"{root}/configs/")
    assert main(command.split()) == 0
    return capsys.readouterr().out.replace(f"{root}/", "").splitlines()


@pytest.mark.full("4,800 images; the folder of oddities is checked in each run")
def test_the_generated_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (making,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "tfpipe sample $(SAMPLE)" in line)
    sample = tmp_path / "data/sample"
    assert main(["sample", str(sample), *making.split("$(SAMPLE)")[1].split()]) == 0
    assert printed_for("sample", sample, tmp_path, capsys) == shown_of("sample.json")[1]


if BCCD:

    def test_blood_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert printed_for("bccd", Path(BCCD), tmp_path, capsys) == shown_of("bccd.json")[1]
