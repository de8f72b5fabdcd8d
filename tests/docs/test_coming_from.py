"""The programs of coming-from.md: before and after give the same pictures and labels, within the page's tolerance."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tfpipe
from tests.support.commands import ROOT
from tests.support.documents import blocks

FOLDER = ROOT / "docs/examples/coming_from"
PATH = ROOT / "docs/coming-from.md"
PAGE = PATH.read_text()
AFTER = [block for block in blocks(PATH, "python") if block.startswith("# after")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 9 square photos-like pictures each: smooth shapes, and noise that a wrong kernel would alias."""
    root = tmp_path_factory.mktemp("classes")
    random = np.random.default_rng(5)
    for number in range(18):
        side = 150 + 10 * number
        rows, columns = np.mgrid[:side, :side] / side
        waves = 128 + 90 * np.sin((3 + number) * rows[..., None] + np.array([2, 5, 9]) * columns[..., None])
        pixels = np.clip(waves + random.normal(0, 12, (side, side, 3)), 0, 255).astype(np.uint8)
        (path := root / f"class{number % 2}" / f"{number:02}.jpg").parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=92)
    return root


def tolerance(program: str) -> float:
    """Mean difference in levels of 255 that the page states for a program."""
    (levels,) = re.findall(rf"\(examples/coming_from/{program}\.py\)[^|]*\|[^|]*\| ([0-9.]+) ", PAGE)
    return float(levels)


@pytest.mark.parametrize("program", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_before_and_after_give_the_same_pictures(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["x.py", str(folder)])
    runpy.run_path(str(FOLDER / f"{program}.py"), run_name="__main__")
    found: list[Any] = re.findall(
        r"^(\d+) images, ([\d.]+) of 255 levels, labels (\w+)$", capsys.readouterr().out, re.M
    )
    assert [(count, same) for count, _, same in found] == [("16", "True"), ("2", "True")]
    assert max(float(levels) for _, levels, _ in found) <= tolerance(program)


@pytest.mark.parametrize("code", AFTER, ids=[str(number) for number in range(len(AFTER))])
def test_the_programs_after_give_batches(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers/train").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {"tfpipe": tfpipe}
    exec(code, names)
    with names["train"] as loader:
        images, labels = next(iter(loader))
    assert sorted(images.shape) == [3, 16, 128, 128] and {*np.asarray(labels).tolist()} == {0, 1}


def test_each_loader_has_a_program_before_and_after() -> None:
    assert PAGE.count("# before\n") == len(AFTER) == 7
