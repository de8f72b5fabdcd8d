"""Objects of S3 by libcurl: signed as AWS's own library signs, and left to s3fs where only that can get them."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, versioned
from tests.support.trees import write_below
from tfpipe.config import Remote
from tfpipe.data.sources.remote import fetcher as remote
from tfpipe.data.sources.remote import file_systems
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError
from tfpipe.data.sources.remote.file_systems import ByteRange
from tfpipe.data.sources.remote.objects import FEWEST_FAILURES
from tfpipe.util.files import Stamp

NAMES = ("a.jpg", "a b/é ü.jpg", "a+b=c&d.jpg", "x~y_(1)!*'.jpg", "100%.jpg", "50%25.jpg", "[x]@:$,;.jpg", "a#b?c.jpg")
KEYS = {"key": "AKIAX", "secret": "wJalr/+secret", "token": "TOKEN/+="}
REGION = "eu-west-3"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_below(tmp_path / "bucket", {name: bytes([number]) * 1000 for number, name in enumerate(NAMES)})
    with versioned(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.01)


def fetcher(server: Server, **options: Any) -> Fetcher:
    options = {"endpoint_url": server.url, "client_kwargs": {"region_name": REGION}, **options}
    return Fetcher(Remote(retries=3, options=options), ["s3://"])


def by_s3fs(server: Server) -> bool:
    return "Boto" in server.received["User-Agent"]


def signature(server: Server, name: str) -> str:
    """The signature that botocore makes of the latest request, by its own rules of quoting."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.utils import percent_encode

    signed = server.received["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    request = AWSRequest("GET", f"{server.url}/bucket/{percent_encode(name, safe='/~')}")
    for header in signed:
        request.headers[header] = server.received[header]
    request.context["timestamp"] = server.received["x-amz-date"]
    auth = S3SigV4Auth(Credentials(KEYS["key"], KEYS["secret"], KEYS["token"]), "s3", REGION)
    return auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)


@pytest.mark.parametrize("where", ["options", "environment"])
def test_requests_are_signed_as_botocore_signs(server: Server, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "environment":
        for name, value in zip(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"), KEYS.values(), strict=True):
            monkeypatch.setenv(f"AWS_{name}", value)
    made = fetcher(server, **KEYS if where == "options" else {})
    for number, name in enumerate(NAMES):
        assert made.fetch([f"s3://bucket/{name}"]) == [number.to_bytes(1, "big") * 1000]
        assert not by_s3fs(server)
        assert server.received["x-amz-security-token"] == KEYS["token"]
        assert server.received["Authorization"].endswith(f"Signature={signature(server, name)}"), name
        assert f"/{REGION}/s3/aws4_request" in server.received["Authorization"]


def test_public_buckets_get_no_signature(server: Server) -> None:
    assert fetcher(server, anon=True).fetch(["s3://bucket/a.jpg", ""]) == [bytes(1000), None]
    assert not by_s3fs(server) and "Authorization" not in server.received


def test_a_passwords_file_is_not_for_a_store(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login user password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert fetcher(server, anon=True).fetch(["s3://bucket/a.jpg"]) == [bytes(1000)]
    assert not by_s3fs(server) and "Authorization" not in server.received


@pytest.mark.parametrize("options", [{}, {"requester_pays": True}], ids=["libcurl", "s3fs"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_of_a_store_is_not_followed(
    server: Server, tmp_path: Path, quick: None, status: int, options: dict[str, Any]
) -> None:
    """Another host would get the session's token, and its answer has no signature."""
    with versioned(tmp_path) as other:
        server.fail, server.headers = lambda path: status, {"Location": f"{other.url}/bucket/a.jpg"}
        made = fetcher(server, **KEYS, **options)
        (error,) = made.fetch(["s3://bucket/a.jpg"])
        assert isinstance(error, FetchError)
        with suppress(FetchError):
            made.listings(["s3://bucket/"])
        assert not other.asked


@pytest.mark.parametrize("encoding", ["gzip", "aws-chunked", "utf-8", "binary"])
def test_an_object_is_its_stored_bytes_whatever_encoding_is_stated(server: Server, encoding: str) -> None:
    server.headers |= {"Content-Encoding": encoding}
    assert fetcher(server, **KEYS).fetch(["s3://bucket/a.jpg"]) == [bytes(1000)]
    assert not by_s3fs(server)


def test_one_failure_that_passes_moves_no_bucket(server: Server, caplog: pytest.LogCaptureFixture, quick: None) -> None:
    made = fetcher(server, **KEYS)
    for status in (400, 304):
        server.fail = lambda path, status=status: None if by_s3fs(server) else status
        assert made.fetch(["s3://bucket/a.jpg"]) == [bytes(1000)] and by_s3fs(server)
        server.fail = lambda path: None
        assert made.fetch(["s3://bucket/a.jpg"]) == [bytes(1000)] and not by_s3fs(server)
    assert not caplog.records


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"s3_additional_kwargs": {"ExpectedBucketOwner": "1"}},
        {"client_kwargs": {"region_name": REGION, "verify": False}},
        {"config_kwargs": {"user_agent_extra": "me"}},
    ],
    ids=str,
)
def test_options_that_only_s3fs_obeys_leave_the_requests_to_it(server: Server, options: dict[str, Any]) -> None:
    assert fetcher(server, **KEYS, **options).fetch(["s3://bucket/a.jpg"]) == [bytes(1000)]
    assert by_s3fs(server)


def test_a_key_that_libcurl_would_change_is_left_to_s3fs(server: Server) -> None:
    """In a store, `x/../a.jpg` is another object than `a.jpg`, which a client that resolves the dots asks for."""
    made = fetcher(server, **KEYS)
    for key in ("x/../a.jpg", "./a.jpg", "x/.."):
        before = server.asked.copy()
        made.fetch([f"s3://bucket/{key}"])
        assert by_s3fs(server) or server.asked == before, key


def test_a_bucket_that_only_s3fs_reaches_is_left_to_it_and_told_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of another region, to which s3fs goes on by itself."""
    server.fail = lambda path: None if by_s3fs(server) else 301
    made = fetcher(server, **KEYS)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert made.fetch(["s3://bucket/a.jpg", f"s3://bucket/{NAMES[1]}"]) == [bytes(1000), b"\1" * 1000]
    told = [record.message for record in caplog.records if "s3fs makes its requests" in record.message]
    assert len(told) == 1 and "HTTP status 301" in told[0] and "region_name" in told[0]
    assert server.asked["bucket/a.jpg"] == 5 + FEWEST_FAILURES // 2, "by both until then"


def test_failures_that_may_pass_are_repeated_and_others_have_the_stores_reason(server: Server, quick: None) -> None:
    made = fetcher(server, **KEYS)
    server.fail = lambda path: 503 if server.asked[path] < 4 else None
    assert made.fetch(["s3://bucket/a.jpg"]) == [bytes(1000)]
    assert server.asked["bucket/a.jpg"] == 4 and not by_s3fs(server)
    server.fail = lambda path: None
    missing, there = made.fetch(["s3://bucket/none.jpg", "s3://bucket/a.jpg"])
    assert isinstance(missing, FetchError) and missing.missing and there == bytes(1000)
    made.fetch(["s3://bucket/a.jpg"])
    assert not by_s3fs(server), "a missing object says nothing about the bucket"


def test_an_object_above_libcurls_limit_comes_by_s3fs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "MAX_BYTES", 999)
    made = fetcher(server, **KEYS)
    assert made.fetch(["s3://bucket/a.jpg"]) == [bytes(1000)] and by_s3fs(server)
    monkeypatch.setattr(file_systems, "MAX_BYTES", 1000)
    assert made.fetch(["s3://bucket/a.jpg"]) == [bytes(1000)] and not by_s3fs(server)


def test_parts_are_of_the_version_that_is_meant(server: Server) -> None:
    made = fetcher(server, **KEYS)
    (stamp,) = made.stamps(["s3://bucket/a.jpg"])
    assert isinstance(stamp, Stamp) and by_s3fs(server)
    part = ByteRange("s3://bucket/a.jpg", 10, 20, stamp)
    assert made.ranges([part]) == [bytes(10)] and not by_s3fs(server)
    server.headers = {"ETag": '"2"'}
    (changed,) = made.ranges([part])
    assert isinstance(changed, FetchError) and "it has changed since the start" in str(changed)


def test_without_credentials_s3fs_says_so(server: Server) -> None:
    (error,) = fetcher(server).fetch(["s3://bucket/a.jpg"])
    assert isinstance(error, FetchError) and "Unable to locate credentials" in str(error)
    assert not server.asked
