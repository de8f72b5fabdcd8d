"""Requests: together, repeated where that may help, and named where they fail."""

import base64
import json
import pickle
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.commands import WARM, finish, start
from tests.support.server import Server, serving
from tfpipe.config import Remote
from tfpipe.config.section import NETRC
from tfpipe.data.sources.remote import fetcher as remote
from tfpipe.data.sources.remote import file_systems
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError, pause_s
from tfpipe.data.sources.remote.file_systems import ByteRange
from tfpipe.errors import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    (root / "a").mkdir(parents=True)
    for number in range(300):
        (root / f"a/{number}.JPEG").write_bytes(number.to_bytes(2, "big") * 500)
    return root


@pytest.fixture
def server(files: Path):
    with serving(files) as made:
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.01)


def urls(server: Server, count: int = 300) -> list[str]:
    return [f"{server.url}/a/{number}.JPEG" for number in range(count)]


def contents(count: int = 300) -> list[bytes]:
    return [number.to_bytes(2, "big") * 500 for number in range(count)]


def fetcher(server: Server, **how: object) -> Fetcher:
    return Fetcher(Remote(**how), [server.url])


def test_contents_come_in_the_order_of_the_urls(server: Server) -> None:
    wanted = [*urls(server), "", *urls(server, 3)]
    assert fetcher(server).fetch(wanted) == [*contents(), None, *contents(3)]


@pytest.mark.parametrize("allowed", [1, 64])
def test_many_requests_are_under_way_at_once_and_no_more_than_allowed(server: Server, allowed: int) -> None:
    """None is answered before as many as are allowed have come, from two threads."""
    server.together, server.latency_s = allowed, 0.01
    by, found = fetcher(server, concurrency=allowed, retries=0), {}
    halves = [range(0, 3 * allowed, 2), range(1, 3 * allowed, 2)]

    def fetch(half: range) -> None:
        wanted = urls(server)
        found.update(zip(half, by.fetch([wanted[number] for number in half]), strict=True))

    threads = [threading.Thread(target=fetch, args=[half]) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(3 * allowed)] == contents(3 * allowed)
    assert server.most == allowed


def test_nothing_is_lost_where_every_tenth_request_fails(server: Server, quick: None) -> None:
    server.fail_some(0.1)
    assert fetcher(server).fetch(urls(server)) == contents()
    assert server.asked.total() > 310


def test_a_server_that_goes_away_is_waited_for(server: Server, quick: None) -> None:
    server.latency_s, asked = 0.02, []

    def go_away() -> None:
        while server.asked.total() < 60:
            time.sleep(0.005)
        server.stop()
        asked.append(server.asked.total())
        time.sleep(0.2)
        server.start()

    away = threading.Thread(target=go_away)
    away.start()
    assert fetcher(server, concurrency=8, retries=13).fetch(urls(server)) == contents()
    away.join()
    assert 60 <= asked[0] < 300 < server.asked.total(), "some were asked for again"


def test_pauses_grow_and_last_half_a_minute_by_default() -> None:
    least = [min(pause_s(done) for _ in range(300)) for done in range(1, 9)]
    most = [max(pause_s(done) for _ in range(300)) for done in range(1, 9)]
    assert sum(least) >= 30 and Remote().retries == 8
    assert all(high > 1.5 * low for low, high in zip(least, most, strict=True)), "they differ by chance"
    assert least == sorted(least)
    assert 0.125 <= least[0] and most[0] <= 0.25 < most[1] <= 0.5, "from a quarter of a second on"


@pytest.mark.parametrize(
    ("status", "tries", "said"),
    [
        (404, 1, r"HTTP status 404 \(Not Found\); tried once"),
        (403, 1, r"HTTP status 403 \(Forbidden\); tried once"),
        (429, 4, r"HTTP status 429 \(Too Many Requests\); tried 4 times in \d+ s"),
        (500, 4, r"HTTP status 500 \(Internal Server Error\); tried 4 times"),
        (0, 4, r"ServerDisconnectedError: .*; tried 4 times"),
    ],
)
def test_what_cannot_be_fetched_is_named_with_status_and_tries(
    server: Server, quick: None, status: int, tries: int, said: str
) -> None:
    server.fail = lambda path: status if path == "a/7.JPEG" else None
    found = fetcher(server, retries=3).fetch(urls(server, 10))
    assert found[:7] + found[8:] == contents(10)[:7] + contents(10)[8:]
    assert isinstance(found[7], FetchError) and found[7].missing == (status == 404)
    # When an open connection is lost, libcurl repeats the request by itself.
    assert tries <= server.asked["a/7.JPEG"] <= (tries if status else 2 * tries)
    with pytest.raises(FetchError, match=rf"cannot fetch {server.url}/a/7\.JPEG: {said}"):
        raise pickle.loads(pickle.dumps(found[7]))  # as from another rank


def test_no_answer_in_time_is_tried_again(server: Server, quick: None) -> None:
    server.latency_s = 30
    with pytest.raises(FetchError, match=r"no answer within 0\.2 s; tried 2 times"):
        raise fetcher(server, timeout_s=0.2, retries=1).fetch(urls(server, 1))[0]


def test_a_missing_xml_is_none_and_a_missing_image_an_error(server: Server) -> None:
    xml, image = fetcher(server).fetch([f"{server.url}/a/1000.xml", f"{server.url}/a/1000.JPEG"])
    assert xml is None and isinstance(image, FetchError)


def test_starts_and_stamps(server: Server, files: Path) -> None:
    (files / "a/1.JPEG").write_bytes(b"")
    assert fetcher(server).starts(urls(server, 3), 7) == [contents()[0][:7], b"", contents()[2][:7]]
    assert [stamp.size for stamp in fetcher(server).stamps(urls(server, 3))] == [1000, 0, 1000]


def test_a_response_that_does_not_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows no ranges: it sends all from the start."""
    monkeypatch.setattr(file_systems, "MAX_BYTES", 10**6)
    server.endless = True
    assert fetcher(server).starts(urls(server, 2), 1001) == [start + b"\0" for start in contents(2)]
    with pytest.raises(FetchError, match=r"/a/0\.JPEG: TooLong: the response has more than 1 MB; tried once"):
        raise fetcher(server).fetch(urls(server, 1))[0]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "aws-chunked", "utf-8", "binary", "br, gzip"])
def test_bytes_are_those_that_are_stored_whatever_encoding_is_stated(server: Server, encoding: str) -> None:
    """Of a file as of its parts: neither is decoded, and the server is asked not to encode."""
    server.headers, server.ranges = {"Content-Encoding": encoding}, True
    assert fetcher(server).fetch(urls(server, 1)) == contents(1)
    assert fetcher(server).ranges([ByteRange(urls(server, 1)[0], 3, 9)]) == [contents(1)[0][3:9]]
    assert server.received["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [201, 202, 203, 204, 205, 206, 226, 300, 304])
def test_another_status_than_that_of_a_whole_file_is_no_file(server: Server, status: int) -> None:
    server.fail = lambda path: status
    (error,) = fetcher(server).fetch(urls(server, 1))
    assert isinstance(error, FetchError) and f"HTTP status {status}" in str(error) and "tried once" in str(error)


def test_what_is_under_way_is_given_up_at_the_end(server: Server) -> None:
    server.latency_s = 600
    slow, found = fetcher(server), []
    thread = threading.Thread(target=lambda: found.extend(slow.fetch(urls(server, 3))))
    thread.start()
    while server.asked.total() < 3:
        time.sleep(0.01)
    slow.close()
    thread.join(60)
    assert [str(each) for each in found] == [f"cannot fetch {url}: the process is ending" for url in urls(server, 3)]
    assert isinstance(slow.fetch(urls(server, 1))[0], FetchError), "nor begins anything"
    server.latency_s = 0


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("https", "pycurl"), ("gs", "gcsfs")])
def test_a_missing_package_is_named_and_how_to_get_it(
    scheme: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec.registry  # noqa: F401

    # File systems that were used before need no package any more. The module: fsspec has a dictionary of that name.
    used = sys.modules["fsspec.registry"]._registry
    for name in list(used):
        monkeypatch.delitem(used, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{scheme}:// URLs.*: pip install 'tfpipe\[remote\]'"):
        Fetcher(Remote(), [f"{scheme}://host/a/"])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    if scheme != "https":
        with pytest.raises(ConfigError, match=r"pip install 'tfpipe\[remote\]'"):
            Fetcher(Remote(), [f"{scheme}://host/a/"])


def test_options_that_cannot_be_used_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.remote\.options: s3:// cannot be used with these"):
        Fetcher(Remote(options={"config_kwargs": 3}), ["s3://a/"])


def test_a_password_is_read_where_errors_say_it_should_be(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    options = json.loads(NETRC.partition("data.remote.options to ")[2])
    assert fetcher(server, options=options).fetch(urls(server, 1)) == contents(1)
    assert base64.b64decode(server.received["Authorization"].removeprefix("Basic ")) == b"user:hidden"


@pytest.mark.parametrize("how", ["length", "chunks", "garbage"])
def test_a_body_that_breaks_off_is_tried_again(server: Server, quick: None, how: str) -> None:
    server.breaks = lambda path: how if path == "a/7.JPEG" and server.asked[path] <= 3 else ""
    assert fetcher(server, retries=3).fetch(urls(server, 10)) == contents(10)
    assert server.asked["a/7.JPEG"] == 4
    server.breaks = lambda path: how
    (error,) = fetcher(server, retries=2).fetch(urls(server, 1))
    assert isinstance(error, FetchError) and not error.missing
    assert "tried 3 times" in str(error) and "HTTP status" not in str(error)


def test_a_server_that_refuses_the_first_request_of_a_stamp_is_tried_again(server: Server, quick: None) -> None:
    server.stop()
    threading.Timer(0.3, server.start).start()
    stamps = fetcher(server, retries=13).stamps(urls(server, 2))
    assert [stamp.size for stamp in stamps] == [len(body) for body in contents(2)]
    server.stop()
    (error,) = fetcher(server, retries=1).stamps(urls(server, 1))
    assert isinstance(error, FetchError) and not error.missing
    assert "the server cannot be reached: ClientConnectorError" in str(error) and "tried 2 times" in str(error)
    server.start()
    (missing,) = fetcher(server).stamps([f"{server.url}/a/none.JPEG"])
    assert isinstance(missing, FetchError) and missing.missing


FORKED = """
import os, sys, threading
import fsspec
from tfpipe.config import Remote
from tfpipe.data.sources.remote.fetcher import shared_fetcher
from tfpipe.data.sources.remote.ranges import Extent, RemoteFiles
from tfpipe.util.files import Stamp

how, *urls = sys.argv[1:]
if urls[0].startswith("memory:"):
    for number, url in enumerate(urls):
        fsspec.filesystem("memory").pipe_file(url.removeprefix("memory:/"), number.to_bytes(2, "big") * 500)
remote, results = Remote(retries=0), []
opened = RemoteFiles([(urls[0], Stamp(1000, None))], remote)

def works():
    fetched = shared_fetcher(remote, urls).fetch(urls)
    results.append([number.to_bytes(2, "big") * 500 for number in range(len(urls))] == fetched)
    results.append(opened.read([Extent(0, 0, 2)]) == [bytes(2)])
    return all(results)

assert works()
working = threading.Thread(target=works)
working.start()
child = os.fork()
if not child:
    results.clear()
    status = not works()
    os._exit(status) if how == "at once" else sys.exit(status)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
working.join()
print(status, works(), len(results))
"""


@pytest.mark.parametrize("how", ["at once", "in order"])
@pytest.mark.parametrize("scheme", ["http", "memory"])
def test_a_forked_child_fetches_and_ends_while_its_parent_goes_on(server: Server, scheme: str, how: str) -> None:
    """The thread, the event loop and the connections are the parent's, which is waiting for answers at the fork."""
    server.ranges, server.latency_s = True, 0.01
    there = urls(server, 100) if scheme == "http" else [f"memory://a/{number}" for number in range(100)]
    done = finish(start(*WARM, "-c", FORKED, how, *there))
    assert (done.code, done.out) == (0, "0 True 6\n"), done.err
