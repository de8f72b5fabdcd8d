"""Files that appear whole or not at all, also after their writers were killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfpipe.util.atomic_write import ABANDONED_S, locked_write, remove_abandoned

KILLED = """
import os, signal, sys
from pathlib import Path
from tfpipe.util.atomic_write import locked_write
with locked_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with locked_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    with pytest.raises(OSError, match="disk"), locked_write(path) as file:
        file.write(b"half")
        raise OSError("the disk is full")
    assert path.read_bytes() == b"whole" and os.listdir(tmp_path) == ["a.bin"]


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    path, other = tmp_path / "a[1].bin", tmp_path / "a1.bin"
    for each in (path, other):
        subprocess.run([sys.executable, "-c", KILLED, str(each)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    remove_abandoned(path)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a1.bin.")
    with locked_write(path) as file:
        file.write(b"whole")
        remove_abandoned(path)
    assert path.read_bytes() == b"whole"


def test_without_locks_only_old_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*how: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    partial = tmp_path / ".a.bin.host-1-1.partial"
    partial.write_bytes(b"half")
    remove_abandoned(tmp_path / "a.bin")
    assert partial.exists()
    then = partial.stat().st_mtime - 2 * ABANDONED_S
    os.utime(partial, (then, then))
    remove_abandoned(tmp_path / "a.bin")
    assert not partial.exists()
    with locked_write(tmp_path / "a.bin") as file:
        file.write(b"whole")
    assert (tmp_path / "a.bin").read_bytes() == b"whole"


def test_a_file_whose_number_is_never_that_of_its_name_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of being opened until no more files can be."""
    opens = []

    def differ(*_: object) -> bool:
        opens.append(len(os.listdir("/proc/self/fd")))
        assert len(opens) < 50, "opened without an end"
        return False

    monkeypatch.setattr("tfpipe.util.atomic_write.is_same_file", differ)
    with locked_write(tmp_path / "a.bin") as file:
        file.write(b"whole")
    assert (tmp_path / "a.bin").read_bytes() == b"whole"
    assert max(opens) == min(opens), "files stay open"
