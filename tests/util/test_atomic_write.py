"""Files that appear whole or not at all, and of which nothing stays that nobody writes."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import finish, start
from tfpipe.util import atomic_write as module
from tfpipe.util.atomic_write import OLD_S, PARTIAL, atomic_write, partial_path, remove_leftovers


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with atomic_write(path) as partial:
        partial.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    with pytest.raises(OSError, match="disk"), atomic_write(path) as partial:
        partial.write_bytes(b"half")
        raise OSError("the disk is full")
    assert path.read_bytes() == b"whole" and os.listdir(tmp_path) == ["a.bin"]


WRITE = """
import sys, time
from pathlib import Path
from tfpipe.util.atomic_write import partial_path
for name in ("file", "folder"):
    path = partial_path(Path(sys.argv[1]) / name)
    path.mkdir() if name == "folder" else path.write_bytes(b"half")
print("written", flush=True)
time.sleep(60)
"""


def test_only_what_no_living_process_writes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this process, by another one until that is killed, and by processes of other hosts, whatever their numbers."""

    def left() -> int:
        remove_leftovers(tmp_path.glob(f".*{PARTIAL}"))
        return len(list(tmp_path.iterdir()))

    other = start(sys.executable, "-c", WRITE, tmp_path)
    assert other.stdout.readline() == "written\n"
    partial_path(tmp_path / "ours").write_bytes(b"half")
    assert left() == 3
    other.kill()
    finish(other)
    assert left() == 1
    monkeypatch.setattr(module, "_system", lambda: "0123456789abcdef")
    partial_path(tmp_path / "theirs").write_bytes(b"half")
    monkeypatch.undo()
    dead = partial_path(tmp_path / "dead")
    dead.with_name(dead.name.replace(f"-{os.getpid()}-", f"-{other.pid}-").replace(module._system(), "0" * 16)).touch()
    (tmp_path / ".of an earlier version.host-1-2.partial").mkdir()
    assert left() == 4
    long_ago = time.time() - OLD_S - 60
    for path in tmp_path.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert left() == 0
