"""Parts of large files behind URLs: neighbours together, blocks in a cache that is bounded, shared and checked."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.server import Server, serving
from tfpipe.config import Remote
from tfpipe.data.sources.remote import fetcher, ranges
from tfpipe.data.sources.remote.cache import SEAL
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError
from tfpipe.data.sources.remote.ranges import GAP, REQUEST_BYTES, Extent, RemoteFiles, neighbours
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp

SIZES = (50_000, 1, 33_333)
BLOCK = 4096


@pytest.fixture
def files(tmp_path: Path) -> list[bytes]:
    rng = np.random.default_rng(0)
    contents = [rng.bytes(size) for size in SIZES]
    (tmp_path / "files").mkdir()
    for number, data in enumerate(contents):
        (tmp_path / f"files/{number}").write_bytes(data)
    return contents


@pytest.fixture
def server(tmp_path: Path, files: list[bytes], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranges, "BLOCK", BLOCK)
    monkeypatch.setattr(fetcher, "PAUSE_S", 0.01)
    with serving(tmp_path / "files") as made:
        made.ranges = True
        yield made


def remote_files(server: Server, cache: Path | None = None, gb: float = 1.0, version: str = "") -> RemoteFiles:
    files = [(f"{server.url}/{number}", Stamp(size, version)) for number, size in enumerate(SIZES)]
    return RemoteFiles(files, Remote(cache=cache, cache_gb=gb, retries=3))


def blocks(folder: Path) -> list[Path]:
    """The files of a cache that hold blocks."""
    return list((folder / "cache").glob("??/*"))


def random_places(count: int, seed: int = 0) -> list[Extent]:
    rng = np.random.default_rng(seed)
    places = []
    for file in rng.choice([0, 0, 1, 2], count).tolist():
        offset = int(rng.integers(0, SIZES[file]))
        places.append(Extent(file, offset, int(rng.integers(1, min(9000, SIZES[file] - offset) + 1))))
    return places


def expected(files: list[bytes], places: list[Extent]) -> list[bytes]:
    return [files[file][offset : offset + length] for file, offset, length in places]


@pytest.mark.parametrize("cached", [False, True])
def test_any_bytes_are_those_of_the_files(server: Server, files: list[bytes], tmp_path: Path, cached: bool) -> None:
    reader = remote_files(server, tmp_path / "cache" if cached else None)
    for seed in range(3):
        places = random_places(40, seed)
        assert reader.read(places) == expected(files, places)
    assert reader.read([]) == []


def test_the_cache_fetches_each_block_once_for_all_threads_and_processes(
    server: Server, files: list[bytes], tmp_path: Path
) -> None:
    server.latency_s = 0.05
    readers = [remote_files(server, tmp_path / "cache") for _ in range(2)]
    places = [Extent(0, 0, SIZES[0]), *random_places(60)]
    with ThreadPoolExecutor(8) as pool:
        for read in pool.map(lambda _: readers[0].read(places), range(8)):
            assert read == expected(files, places)
    assert server.sent == SIZES[0] + SIZES[2] + 1 == sum(SIZES)
    assert readers[1].read(places) == expected(files, places) and server.sent == sum(SIZES)
    assert remote_files(server, tmp_path / "cache").read(places) == expected(files, places)
    assert server.sent == sum(SIZES), "a later process has the blocks too"


def test_the_cache_is_bounded_and_the_rest_is_fetched_each_time(
    server: Server, files: list[bytes], tmp_path: Path
) -> None:
    reader = remote_files(server, tmp_path / "cache", gb=5 * BLOCK / 1e9)
    whole = [Extent(file, 0, size) for file, size in enumerate(SIZES)]
    for _ in range(2):
        assert reader.read(whole) == files
    assert [file.stat().st_size for file in blocks(tmp_path)] == [BLOCK + SEAL] * 4
    again, before = remote_files(server, tmp_path / "cache", gb=5 * BLOCK / 1e9), server.sent
    assert again.read(whole) == files
    assert len(blocks(tmp_path)) == 4, "what a later run finds is not replaced by what it reads"
    assert before < server.sent


def test_blocks_that_no_process_has_used_since_make_room_for_others(
    server: Server, files: list[bytes], tmp_path: Path
) -> None:
    whole, room = [Extent(0, 0, SIZES[0])], 20 * (BLOCK + SEAL) / 1e9
    assert remote_files(server, tmp_path / "cache", room, "old").read(whole) == files[:1]
    old = blocks(tmp_path)
    assert len(old) == 13
    for block in old:
        os.utime(block, (0, 0))
    new = remote_files(server, tmp_path / "cache", room, "new")
    assert new.read(whole) == files[:1]
    assert len(set(blocks(tmp_path)) - set(old)) == 13, "all of its own are there"
    assert remote_files(server, tmp_path / "cache", room, "next").read(whole) == files[:1]
    before = server.sent
    assert new.read(whole) == files[:1] and server.sent == before, "those that another process uses are not replaced"


def test_another_version_of_a_file_has_blocks_of_its_own(server: Server, files: list[bytes], tmp_path: Path) -> None:
    places = [Extent(0, 0, SIZES[0])]
    assert remote_files(server, tmp_path / "cache", version="a").read(places) == files[:1]
    (tmp_path / "files/0").write_bytes(files[0][::-1])
    assert remote_files(server, tmp_path / "cache", version="b").read(places) == [files[0][::-1]]


def test_a_block_that_was_lost_or_changed_is_fetched_again(server: Server, files: list[bytes], tmp_path: Path) -> None:
    places = [Extent(0, 0, SIZES[0])]
    remote_files(server, tmp_path / "cache").read(places)
    lost, damaged, empty = sorted(blocks(tmp_path))[:3]
    lost.unlink()
    damaged.write_bytes(bytes(damaged.stat().st_size))
    empty.write_bytes(b"")
    before = server.sent
    assert remote_files(server, tmp_path / "cache").read(places) == [files[0]]
    assert server.sent - before == 3 * BLOCK


def test_a_disk_that_is_full_only_ends_caching(
    server: Server, files: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    reader = remote_files(server, tmp_path / "cache")
    monkeypatch.setattr(os, "replace", full)
    assert reader.read([Extent(0, 5, 100)]) == [files[0][5:105]]


@pytest.mark.parametrize("cached", [False, True])
def test_failures_that_pass_lose_nothing_and_others_are_named(
    server: Server, files: list[bytes], tmp_path: Path, cached: bool
) -> None:
    server.fail_some(0.3)
    reader = remote_files(server, tmp_path / "cache" if cached else None)
    for seed in range(5):
        places = random_places(20, seed)
        assert reader.read(places) == expected(files, places)
    server.fail = lambda path: 404 if path == "2" else None
    results = remote_files(server, tmp_path / "other" if cached else None).read([Extent(0, 0, 9), Extent(2, 0, 9)])
    assert results[0] == files[0][:9]
    assert isinstance(results[1], FetchError) and f"{server.url}/2: HTTP status 404" in str(results[1])


def test_a_server_that_ignores_ranges_is_refused(server: Server, files: list[bytes]) -> None:
    server.ranges = False
    (result,) = remote_files(server).read([Extent(0, 0, 9)])
    assert "the server ignores ranges" in str(result)
    server.ranges = True
    server.root = server.root.parent
    (result,) = remote_files(server).read([Extent(0, 0, 9)])
    assert isinstance(result, FetchError)


def test_a_file_that_is_shorter_than_it_was_is_named(server: Server, files: list[bytes]) -> None:
    reader = remote_files(server)
    (server.root / "0").write_bytes(b"short")
    (result,) = reader.read([Extent(0, 0, 9)])
    assert "it has changed since the start, from 50000 to 5 bytes: start again" in str(result)
    (server.root / "0").write_bytes(files[0])
    assert reader.read([Extent(0, 0, 9)]) == [files[0][:9]]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ({"ETag": '"1"'}, {"ETag": '"2"'}, 'from "1" to "2": start again'),
        ({"ETag": '"1"'}, {"ETag": '"2"', "Last-Modified": "now"}, 'from "1" to "2": start again'),
        ({"ETag": '"1"'}, {"ETag": 'W/"1"'}, None),
        ({"ETag": '"1"'}, {}, None),
        ({"Last-Modified": "then"}, {"Last-Modified": "now"}, "from then to now: start again"),
        ({}, {"ETag": '"1"'}, None),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_file_that_is_replaced_is_named_and_its_bytes_not_used(
    server: Server, files: list[bytes], tmp_path: Path, cached: bool, before: dict, after: dict, problem: str | None
) -> None:
    url, remote = f"{server.url}/0", Remote(cache=tmp_path / "cache" if cached else None)
    server.headers = before
    (stamp,) = fetcher.shared_fetcher(Remote(), [url]).stamps([url])
    reader = RemoteFiles([(url, stamp)], remote)
    assert reader.read([Extent(0, 0, 9)]) == [files[0][:9]]
    server.headers = after
    (server.root / "0").write_bytes(files[0][::-1])
    (result,) = reader.read([Extent(0, 2 * BLOCK, 9)])
    if problem is None:
        assert result == files[0][::-1][2 * BLOCK : 2 * BLOCK + 9]
    else:
        assert isinstance(result, FetchError) and f"{url}: ValueError: it has changed since" in str(result)
        assert problem in str(result)


@pytest.mark.parametrize("answer", ["bytes 1-9/50000", "bytes 0-9/50000", "bytes 0-8", "pages 0-8/50000", None])
def test_an_answer_with_other_bytes_is_refused(server: Server, files: list[bytes], answer: str | None) -> None:
    server.headers = {"Content-Range": answer or ""}
    (result,) = remote_files(server).read([Extent(0, 0, 9)])
    assert isinstance(result, FetchError) and "the server answers bytes=0-8 with " in str(result)
    (start,) = fetcher.shared_fetcher(Remote(), [server.url]).starts([f"{server.url}/0"], 9)
    assert isinstance(start, FetchError) and "the server answers bytes=0-8 with " in str(start)


def test_the_log_says_once_that_a_new_file_of_equal_length_is_not_noticed(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for changed, count in (('"1"', 0), (None, 1)):
        caplog.clear()
        files = [(f"{server.url}/{number}", Stamp(size, changed)) for number, size in enumerate(SIZES)]
        RemoteFiles(files, Remote()).read([Extent(0, 0, 9), Extent(2, 0, 9)])
        assert len([line for line in caplog.messages if "a new file of equal length is not noticed" in line]) == count


def test_a_replaced_object_of_a_store_is_noticed_when_its_version_is_asked_for(files: list[bytes]) -> None:
    system, url = fsspec.filesystem("memory"), "memory://replaced/0"
    system.pipe_file("/replaced/0", files[0])
    (stamp,) = fetcher.shared_fetcher(Remote(), [url]).stamps([url])
    reader = RemoteFiles([(url, stamp)], Remote())
    assert reader.read([Extent(0, 0, 9)]) == [files[0][:9]]
    system.pipe_file("/replaced/0", files[0][::-1])
    assert reader.read([Extent(0, 0, 9)]) == [files[0][::-1][:9]], "it is not asked for with each request"
    fetcher.shared_fetcher(Remote(), [url])._look_s.clear()
    for _ in range(2):
        (result,) = reader.read([Extent(0, 0, 9)])
        assert isinstance(result, FetchError) and "it has changed since the start" in str(result)


def test_a_version_that_was_not_answered_in_time_is_asked_for_again(
    files: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, url, stamp = fsspec.filesystem("memory"), "memory://late/0", Fetcher._stamp
    system.pipe_file("/late/0", files[0])
    pauses_s = iter([99])

    async def late(self: Fetcher, url: str) -> Stamp:
        await asyncio.sleep(next(pauses_s, 0))
        return await stamp(self, url)

    monkeypatch.setattr(Fetcher, "_stamp", late)
    reader = RemoteFiles([(url, Stamp(len(files[0]), "another"))], Remote(timeout_s=1))
    (result,) = reader.read([Extent(0, 0, 9)])
    assert "it has changed since the start" in str(result) and "tried 2 times" in str(result)


def test_file_systems_without_asyncio_work_too(files: list[bytes]) -> None:
    system = fsspec.filesystem("memory")
    for number, data in enumerate(files):
        system.pipe_file(f"/ranges/{number}", data)
    places = random_places(20)
    reader = RemoteFiles([(f"memory://ranges/{number}", Stamp(size, 1)) for number, size in enumerate(SIZES)], Remote())
    assert reader.read(places) == expected(files, places)


def test_a_scheme_that_does_not_exist_or_lacks_its_package_is_named() -> None:
    with pytest.raises(ConfigError, match="nosuch:// is no scheme that fsspec knows"):
        RemoteFiles([("nosuch://b/0", Stamp(1, None))], Remote())
    with pytest.raises(ConfigError, match="oci:// URLs need a package that is missing"):
        RemoteFiles([("oci://b/0", Stamp(1, None))], Remote())


places = st.lists(
    st.builds(Extent, st.integers(0, 2), st.integers(0, 4 * REQUEST_BYTES), st.integers(1, 200_000)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60)
@given(places)
def test_neighbours_share_a_request_and_others_do_not(places: list[Extent]) -> None:
    groups = list(neighbours(places))
    assert sorted(number for group in groups for number in group) == list(range(len(places)))
    for group in groups:
        spans = sorted(places[number] for number in group)
        assert len({span.file for span in spans}) == 1
        end = spans[0].offset + spans[0].length
        for span in spans[1:]:
            assert span.offset <= end + GAP and span.offset + span.length - spans[0].offset <= REQUEST_BYTES
            end = max(end, span.offset + span.length)


def test_neighbours_are_found_in_any_order() -> None:
    where = [Extent(0, 300, 50), Extent(1, 0, 9), Extent(0, 100, 200), Extent(0, 10 * GAP, 9)]
    assert list(neighbours(where)) == [[2, 0], [3], [1]]
    assert ranges.GAP < ranges.REQUEST_BYTES
