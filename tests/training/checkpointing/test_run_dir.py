"""A run begins alone in its directory, with room for checkpoints."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tfpipe import ConfigError, World
from tfpipe.training.checkpointing.run_dir import check_room, choose_run_dir, run_lock
from tfpipe.util.atomic_write import atomic_write, partial_path


def test_another_run_in_the_same_directory_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with run_lock(tmp_path, World()):
        said = r"process \d+ on .* is training in this directory already, and holds .*lock: let it finish, or end it"
        with pytest.raises(ConfigError, match=said), run_lock(tmp_path, World()):
            pass
    with run_lock(tmp_path, World()):
        pass
    assert not (tmp_path / "lock").exists()


def test_only_unfinished_files_of_a_killed_run_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a living process writes into the directory, as tfpipe report may, stays."""
    (tmp_path / "checkpoints").mkdir()
    killed = subprocess.Popen(["true"])
    killed.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: killed.pid)
        for name in ("metrics.jsonl", "checkpoints/step-000000001.npz"):
            partial_path(tmp_path / name).write_text("half")
    (tmp_path / "checkpoints/step-000000002.npz").write_text("whole")
    with atomic_write(tmp_path / "report.html") as living:
        living.write_text("half")
        with run_lock(tmp_path, World()):
            assert {path.name for path in tmp_path.rglob("*.*")} == {living.name, "step-000000002.npz"}


def test_a_directory_without_room_for_checkpoints_is_refused_before_training(tmp_path: Path) -> None:
    check_room(tmp_path, 1000, World())
    assert list((tmp_path / "checkpoints").iterdir()) == []
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(ConfigError, match=r"checkpoints has [\d.]+ MB free; a checkpoint takes [\d.]+ MB, and twice"):
        check_room(tmp_path, free, World())


def test_other_files_are_no_checkpoints_to_resume(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/weights.npz").touch()
    with pytest.raises(ConfigError, match=r"no checkpoint in .*checkpoints to resume"):
        choose_run_dir(tmp_path, Path("c.json"), World(), "must")


def test_runs_that_begin_in_the_same_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    names = [choose_run_dir(None, Path("c.json"), World()).name for _ in range(3)]
    assert names == ["c-20260102-030405", "c-20260102-030405-2", "c-20260102-030405-3"]


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file in its place")
    with pytest.raises(ConfigError, match=r"cannot write checkpoints to .*/checkpoints: File exists"):
        check_room(tmp_path, 1, World())
