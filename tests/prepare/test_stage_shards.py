"""Copies of packed data: checked on the way, and continued after a kill."""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import finish, start
from tests.support.routes import SMALL, samples, write_tars
from tfpipe import Config, World
from tfpipe.cli import main
from tfpipe.config import make_config
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare import copier
from tfpipe.prepare.pack import PackPlan, pack
from tfpipe.prepare.stage import Share, stage

SAMPLES = samples(60)
# Copies 1 kB in 2 ms, so that a kill hits it somewhere in a shard.
SLOWLY = """
import hashlib, sys, time, types
from tfpipe.prepare import stage
class Slow:
    def __init__(self, *data): self.real = hashlib.sha256(*data)
    def update(self, block): time.sleep(0.002), self.real.update(block)
    def hexdigest(self): return self.real.hexdigest()
stage.COPY_BYTES, stage.hashlib = 1024, types.SimpleNamespace(sha256=Slow)
from tfpipe.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """60 pictures, packed in 10 shards of each kind."""
    root = tmp_path_factory.mktemp("packed")
    tars = {"source": {"kind": "webdataset", "path": str(write_tars(root / "tars", SAMPLES))}}
    config = make_config({"data": {**SMALL, **tars}})
    for kind in ("original", "raw"):
        pack(config.data, "train", root / kind, PackPlan(kind, 10), World())
    return {kind: root / kind for kind in ("original", "raw")}


def config_of(folder: Path, **data: object) -> Config:
    return make_config({"data": {**SMALL, "source": {"kind": "packed", "path": str(folder)}, **data}})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def test_a_copy_is_whole_and_trained_from_as_it_says(
    originals: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original, out = originals["original"], tmp_path / "out"
    (tmp_path / "c.json").write_text(config_of(original).model_dump_json())
    for said in ("12 files copied", "0 files copied (0.0 MB), 12 already there"):
        assert main(["stage", "-c", str(tmp_path / "c.json"), "--out", str(out)]) == 0
        printed = capsys.readouterr().out
        assert said in printed and f"train from it with: --set data.source.path={out}\n" in printed
    assert contents(out) == contents(original)
    assert main(["pack", "--verify", str(out)]) == 0


def test_a_changed_shard_is_named_and_the_rest_is_copied(originals: dict[str, Path], tmp_path: Path) -> None:
    config = config_of(tmp_path / "spoilt")
    stage(config_of(originals["original"]).data, ["train"], tmp_path / "spoilt", World())
    shard = tmp_path / "spoilt/train-00003-of-00010"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(TfpipeError, match=r"1 file .*\n.*train-00003-of-00010 is not what was packed: find"):
        stage(config.data, ["train"], tmp_path / "out", World())
    left = contents(tmp_path / "out")
    assert len(left) == 11 and not {"train.json", shard.name} & left.keys()
    with pytest.raises(ConfigError, match=r"there is no .*out/train\.json"):
        stage(config_of(tmp_path / "out").data, ["train"], tmp_path / "x", World())
    shard.write_bytes((originals["original"] / shard.name).read_bytes())
    assert stage(config.data, ["train"], tmp_path / "out", World()).copied.files == 1
    assert contents(tmp_path / "out") == contents(originals["original"])


def test_a_share_and_a_copy_of_other_data_are_refused(originals: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--share is for loose files, and packed data are copied whole"):
        stage(config_of(originals["original"]).data, ["train"], tmp_path, World(), Share(1, 3))
    stage(config_of(originals["original"]).data, ["train"], tmp_path, World())
    with pytest.raises(ConfigError, match=r"holds a copy of other data than .*raw/train\.json: remove it, or copy to"):
        stage(config_of(originals["raw"]).data, ["train"], tmp_path, World())
    assert contents(tmp_path) == contents(originals["original"])


def test_a_copy_that_is_refused_for_want_of_room_lets_another_be_made(
    originals: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(copier.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
        with pytest.raises(ConfigError, match=r"the packed data needs .* of 1e-06 GB free; use a larger disk"):
            stage(config_of(originals["raw"]).data, ["train"], tmp_path, World())
    stage(config_of(originals["original"]).data, ["train"], tmp_path, World())
    assert contents(tmp_path) == contents(originals["original"])


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=pytest.mark.full(reason="as 3, at more moments"))], ids=str
)
def test_a_copy_that_is_killed_goes_on(originals: dict[str, Path], tmp_path: Path, kills: int) -> None:
    original, out = originals["original"], tmp_path / "out"
    (tmp_path / "c.json").write_text(config_of(original).model_dump_json())
    moments = random.Random(0)
    for _ in range(kills):
        copying = start(sys.executable, "-c", SLOWLY, "stage", "-c", tmp_path / "c.json", "--out", out)
        try:
            wanted, deadline = (
                len(contents(out) if out.exists() else ()) + moments.choice((0, 1, 1)),
                time.monotonic() + 60,
            )
            while copying.poll() is None and time.monotonic() < deadline:
                # os.walk, since the process removes the folder of the one before.
                partial = [file for folder, _, names in os.walk(out) if ".partial-" in folder for file in names]
                if partial and len(contents(out)) >= wanted:
                    break
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.01))
        finally:
            copying.send_signal(signal.SIGKILL)
            finish(copying)
        for name, copied in contents(out).items():
            assert copied == (original / name).read_bytes(), name
    stage(config_of(original).data, ["train"], out, World())
    assert contents(out) == contents(original)
    assert not [name for name in os.listdir(out) if name.startswith(".partial") and not name.endswith(".lock")]


def test_packed_data_are_not_copied_onto_themselves(originals: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="is the folder of the packed data itself"):
        stage(config_of(originals["original"]).data, ["train"], originals["original"], World())
