"""The examples of the API reference run, in their order, and there is one for each public name."""

import re
from pathlib import Path
from typing import Any

import pytest

import tfpipe
from tests.support.commands import ROOT
from tests.support.documents import blocks
from tests.support.sample import SampleData

API = ROOT / "docs/api.md"


def test_there_is_an_example_for_each_public_name() -> None:
    code = "\n".join(blocks(API, "python"))
    used = {*re.findall(r"\btfpipe\.(\w+)", code), *re.findall(r"from tfpipe import (\w+)", code)}
    inherited = {"Source", "TfpipeError"}  # shown in docs/data/own.md; the base of ConfigError
    assert {*tfpipe.__all__} - inherited <= used


def test_the_examples_run(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.config(tmp_path / "config.json")
    lines = sample.train.read_text().splitlines()
    (tmp_path / "train.txt").write_text("".join(f"{sample.train.parent / line}\n" for line in lines))
    (tmp_path / "flowers").symlink_to(sample.root / "Data/CLS-LOC")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(API, "python"):
        exec(block, names)
    assert "batch_size" in capsys.readouterr().out
    assert names["images"].shape == (8, 32, 32, 3) and next(iter(names["tensors"]))[0].shape[1:] == (3, 32, 32)
    (_, labels), *_ = names["rest"].take(1)
    assert labels.shape == (8,)
    assert next(iter(names["crops"])).images.shape[1:] == (32, 32, 3)
    assert names["loader"].world == tfpipe.World.detect()
