"""Open files: opened anew once their handle is lost, and their limit, raised as far as needed and possible."""

import errno
import os
import resource
from pathlib import Path

import pytest

from tfpipe.errors import ConfigError
from tfpipe.util.open_files import SPARE_FILES, OpenFiles, allow_open


@pytest.mark.parametrize(
    ("limits", "files", "raised"),
    [
        ((1024, 4096), 1024 - SPARE_FILES, None),
        ((1024, 4096), 1025 - SPARE_FILES, 1025),
        ((1024, 4096), 4096 - SPARE_FILES, 4096),
        ((1024, resource.RLIM_INFINITY), 100_000, 100_000 + SPARE_FILES),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 100_000, None),
    ],
)
def test_the_process_keeps_some_for_itself(
    limits: tuple[int, int], files: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, now: set_to.append(now))
    allow_open(files)
    assert set_to == ([] if raised is None else [(raised, limits[1])])


def test_more_than_the_system_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("it is left as it is"))
    with pytest.raises(ConfigError, match="3841 shards are to be open at once, but this process may open 4096 files"):
        allow_open(4097 - SPARE_FILES)


def test_a_file_whose_handle_the_server_has_lost_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of an NFS server: each read by the old handle fails, for ever."""
    (tmp_path / "a").write_bytes(b"content")
    files, lost, real = OpenFiles([str(tmp_path / "a")]), set[int](), os.pread

    def pread(file: int, length: int, offset: int) -> bytes:
        if file in lost:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(file, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert files.read(0, 3, 1) == b"ont"
    (opened,) = files._opened
    lost.add(opened)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        files.read(0, 3, 1)
    assert files.read(0, 3, 1) == b"ont"
    os.fstat(opened)  # open still, for another thread's read
    del files
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)
