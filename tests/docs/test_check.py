"""docs/check.md shows what check prints."""

import json
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.documents import blocks
from tests.support.images import encoded, picture
from tfpipe.cli import main

ODD = ("cat/9.tif", "dog/8.heic", "cat/Thumbs.db", "dog/.DS_Store", "@eaDir/cat/1.jpg", "notes.txt", "dog/README",
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


def test_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (text for text in blocks(ROOT / "docs/check.md", "text") if "--strict" in text)
    command, *shown = block.strip().splitlines()
    plant(tmp_path / "pets")
    data = {"source": {"kind": "folders", "path": "pets"}, "crop_image_size": [32, 32], "batch_size": 4}
    (tmp_path / "config.json").write_text(json.dumps({"data": data}))
    words = command.removeprefix("$ tfpipe ").replace("config.json", str(tmp_path / "config.json")).split()
    assert main(words) == 1
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), printed.err.splitlines()[-1]]
    assert [line.replace(f"{tmp_path}/", "") for line in lines] == shown
    assert main([word for word in words if word != "--strict"]) == 0
