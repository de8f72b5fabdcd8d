"""A lock between processes: one holds it, and it does not outlive that one."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import finish, start
from tfpipe.errors import ConfigError
from tfpipe.util.locks import locked

HOLD = """
import sys, time
from pathlib import Path
from tfpipe.util.locks import locked
with locked(Path(sys.argv[1]), "testing"):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_it_is_one_processs_and_says_whose(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    holder = start(sys.executable, "-c", HOLD, path)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=rf"process {holder.pid} on .* is testing already, and holds {path}"):
            with locked(path, "testing"):
                raise AssertionError
        assert path.exists()
    finally:
        holder.send_signal(signal.SIGKILL)
        finish(holder)
    assert path.exists(), "a killed process cannot remove it"
    with locked(path, "testing"):
        assert str(os.getpid()) in path.read_text() and str(holder.pid) not in path.read_text()
    assert not path.exists()


def test_it_is_free_again_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), locked(tmp_path / "a.lock", "testing"):
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_holder_has_just_removed_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock, calls = tmp_path / "a.lock", fcntl.flock, []

    def too_late(file, how) -> None:
        if not calls:
            path.unlink()
        calls.append(how)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with locked(path, "testing"):
        assert path.exists() and len(calls) == 2


def test_without_locks_it_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file, how) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "a.lock", "testing"):
        pass
    assert "ensure that no other process is testing" in caplog.text


def test_a_process_on_another_host_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stands for the first rank of a host that a run has lost. One on this host is not."""
    path = tmp_path / "a.lock"
    paused: list[float] = []
    with ExitStack() as held:
        held.enter_context(locked(path, "testing"))
        with pytest.raises(ConfigError, match="is testing already"), locked(path, "testing", 60):
            pass
        path.write_text("process 7 on node2")

        def pause(seconds: float) -> None:
            paused.append(seconds)
            held.close()

        monkeypatch.setattr(time, "sleep", pause)
        with locked(path, "testing", 60):
            pass
    assert len(paused) == 1


FORKED = """
import os, sys
from pathlib import Path
from tfpipe.util.locks import waiting_lock
with waiting_lock(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        os.read(0, 1)
        os._exit(0)
with waiting_lock(Path(sys.argv[1])):
    print("locked again", flush=True)
"""


def test_a_child_that_is_forked_meanwhile_does_not_prolong_it(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    forking = subprocess.Popen([sys.executable, "-c", FORKED, tmp_path / "a.lock"], stdin=reads, stdout=subprocess.PIPE)
    os.close(reads)
    try:
        assert forking.stdout.readline() == b"locked again\n"
    finally:
        os.close(writes)
        forking.communicate()
