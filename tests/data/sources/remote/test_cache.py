"""Fetched files, kept in a folder that processes share."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import finish, start
from tfpipe.config import Remote
from tfpipe.data.sources.remote.cache import SEAL, Cache
from tfpipe.errors import ConfigError

KB = 1000
# Takes 1 kB of the cache.
SOME = bytes(KB - SEAL)
TEXT = b"<annotation>" * (KB // 12)
# Fetches URLs 0 to 199 over and over, in an order of its own, and checks what it finds; says what it has found.
SHARE = """
import random, sys
from pathlib import Path
from tfpipe.config import Remote
from tfpipe.data.sources.remote.cache import Cache
from tfpipe.util.locks import waiting_lock

def contents(url):
    return url.encode() * 100

cache = Cache(Remote(cache=Path(sys.argv[1]), cache_gb=float(sys.argv[2])))
order, found, turns = random.Random(sys.argv[3]), 0, int(sys.argv[4])
print("begins", flush=True)
for turn in range(turns) if turns else iter(int, 1):
    urls = [f"http://host/{order.randrange(200):06}" for _ in range(8)]
    kept = {url: cache.find(url) for url in urls}
    for url, each in kept.items():
        assert each in (None, contents(url)), (url, each)
    found += sum(each is not None for each in kept.values())
    cache.keep({url: contents(url) for url, each in kept.items() if each is None})
    with waiting_lock(Path(sys.argv[1]) / "size"):  # so that none comes or goes meanwhile
        size = sum(file.stat().st_size for file in Path(sys.argv[1]).glob("*/*"))
    assert size <= 1e9 * float(sys.argv[2]), size
print("found", found, flush=True)
"""


def cache(tmp_path: Path, limit: float = 1e6, **options: object) -> Cache:
    return Cache(Remote(cache=tmp_path / "cache", cache_gb=limit / 1e9, options=options))


def size(tmp_path: Path) -> int:
    return sum(file.stat().st_size for file in (tmp_path / "cache").glob("*/*"))


def test_it_keeps_by_url_and_by_server_also_that_nothing_is_there(tmp_path: Path) -> None:
    kept = cache(tmp_path, endpoint_url="http://a")
    kept.keep({"s3://b/1": b"one", "s3://b/2": b""})
    again = cache(tmp_path, endpoint_url="http://a")
    assert [again.find(f"s3://b/{number}") for number in (1, 2, 3)] == [b"one", b"", None]
    assert cache(tmp_path, endpoint_url="http://other").find("s3://b/1") is None
    again.forget(["s3://b/1", "s3://b/3"])
    assert again.find("s3://b/1") is None


@pytest.mark.parametrize(
    "name",
    [
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "STORAGE_EMULATOR_HOST",
        "FSSPEC_S3_ENDPOINT_URL",
    ],
)
def test_a_server_of_the_environment_is_another_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    cache(tmp_path).keep({"s3://b/1": b"of none"})
    monkeypatch.setenv(name, "one")
    assert cache(tmp_path).find("s3://b/1") is None
    cache(tmp_path).keep({"s3://b/1": b"of one"})
    assert cache(tmp_path).find("s3://b/1") == b"of one"
    monkeypatch.delenv(name)
    assert cache(tmp_path).find("s3://b/1") == b"of none"


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    kept = cache(tmp_path, limit=10 * KB)
    for number in range(9):
        kept.keep({str(number): SOME})
        os.utime(kept._path(str(number)), (number, number))
    assert kept.find("0") is not None, "used again, so now 1 is the oldest"
    kept.keep({"9": SOME, "10": SOME})
    assert size(tmp_path) <= 10 * KB
    assert [number for number in range(11) if kept.find(str(number)) is None] == [1, 2]


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    kept = cache(tmp_path, limit=3 * KB)
    kept.keep({"a": SOME})
    kept.keep({"b": 4 * SOME})
    assert kept.find("b") is None and size(tmp_path) <= 3 * KB
    kept.keep({"c": 2 * SOME})
    assert kept.find("c") == 2 * SOME


@pytest.mark.parametrize(
    ("contents", "left"), [(b"", b""), (b"", bytes(SEAL)), (TEXT, b""), (TEXT, bytes(KB)), (TEXT, TEXT[:500])]
)
def test_a_file_that_was_not_on_the_disk_when_its_node_crashed_is_not_cached(
    tmp_path: Path, contents: bytes, left: bytes
) -> None:
    """Its name is written earlier than its contents. An empty file would be an XML that does not exist."""
    kept = cache(tmp_path)
    kept.keep({"a.xml": contents})
    Path(kept._path("a.xml")).write_bytes(left)
    assert kept.find("a.xml") is None
    kept.keep({"a.xml": contents})
    assert kept.find("a.xml") == contents


def test_a_smaller_limit_and_a_lost_note_are_heeded(tmp_path: Path) -> None:
    kept = cache(tmp_path)
    kept.keep({str(number): bytes(KB) for number in range(20)})
    cache(tmp_path, limit=10 * KB)
    assert size(tmp_path) <= 10 * KB
    (tmp_path / "cache/size").write_text("")
    smaller = cache(tmp_path, limit=5 * KB)
    smaller.keep({"a": bytes(KB)})
    assert size(tmp_path) <= 5 * KB and smaller.find("a") is not None


def test_a_disk_that_is_full_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = cache(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept.keep({"a": bytes(KB)})
    assert kept.find("a") is None and "No space left on device" in caplog.text


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ConfigError, match=r"data\.remote\.cache: cannot use the folder"):
        cache(tmp_path)


def test_processes_share_a_folder_that_is_too_small_for_them(tmp_path: Path) -> None:
    """200 files of 1.8 kB; there is room for 100."""
    one, other = (start(sys.executable, "-c", SHARE, tmp_path / "cache", "180e-6", each, "150") for each in "ab")
    ended = [finish(one), finish(other)]
    assert [each.code for each in ended] == [0, 0], ended
    assert all(int(each.out.split()[-1]) > 100 for each in ended), "each finds what it or the other has kept"
    assert size(tmp_path) <= 180 * KB


def test_a_process_that_is_killed_leaves_nothing_wrong(tmp_path: Path) -> None:
    for turn in range(4):
        doomed = start(sys.executable, "-c", SHARE, tmp_path / "cache", "180e-6", str(turn), "0")
        try:
            assert doomed.stdout.readline() == "begins\n"
            time.sleep(0.1 * turn)
        finally:
            doomed.send_signal(signal.SIGKILL)
            finish(doomed)
    # As when killed in the middle of a file.
    (tmp_path / "cache/00").mkdir(exist_ok=True)
    (tmp_path / "cache/00/1.partial").write_bytes(bytes(KB))
    os.utime(tmp_path / "cache/00/1.partial", (0, 0))
    (tmp_path / "cache/size").write_text("")
    done = finish(start(sys.executable, "-c", SHARE, tmp_path / "cache", "180e-6", "last", "60"))
    assert done.code == 0, done.err
    assert not list((tmp_path / "cache").glob("*/*.partial"))
