"""Retries: which errors may pass, and reads that are tried again at them."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.flaky import fail_once
from tfpipe.util import retry
from tfpipe.util.files import open_text, read_text, read_whole
from tfpipe.util.retry import MAY_PASS, TRIES, may_pass, retried


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    result: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", result.append)
    return result


@pytest.mark.parametrize("number", list(MAY_PASS))
def test_an_error_that_may_pass_is_known_by_the_systems_message(number: int) -> None:
    assert may_pass(OSError(number, os.strerror(number), "/a")) == MAY_PASS[number]
    assert may_pass(ValueError(f"image 3: {os.strerror(number)}")) == MAY_PASS[number]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC])
def test_others_are_not(number: int, pauses: list[float]) -> None:
    assert may_pass(OSError(number, os.strerror(number))) is None

    @retried
    def work() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=os.strerror(number)):
        work()
    assert not pauses


@pytest.mark.parametrize("read", [read_whole, lambda path: read_whole(path, most=5)])
def test_a_read_is_tried_again(monkeypatch: pytest.MonkeyPatch, pauses: list[float], caplog, tmp_path, read) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    failures, real = [errno.EIO, errno.EMFILE], os.open

    def flaky(path: str, flags: int) -> int:
        if failures:
            number = failures.pop(0)
            raise OSError(number, os.strerror(number), path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", flaky)
    assert read(f"{tmp_path}/a") == b"bytes"
    assert pauses == [1, 2]
    assert [f"{tmp_path}/a" in message and "tries again in" in message for message in caplog.messages] == [True, True]


@pytest.mark.parametrize("read", [read_text, lambda path: open_text(path).read()])
def test_a_text_is_opened_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read) -> None:
    (tmp_path / "a").write_text("words")
    pauses = fail_once(monkeypatch, Path, "open", errno.ESTALE)
    assert read(tmp_path / "a") == "words"
    assert pauses == [1]


def test_it_gives_up_in_the_end(pauses: list[float]) -> None:
    calls = []

    @retried
    def work(number: int) -> None:
        calls.append(number)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        work(7)
    assert calls == [7] * (TRIES + 1) and pauses == [1, 2, 4, 8, 16]
