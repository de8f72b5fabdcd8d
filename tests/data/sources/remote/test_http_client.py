"""HTTP by libcurl: certificates, redirects, proxies, quoting, and options."""

import datetime
import ipaddress
import ssl
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.commands import run
from tests.support.server import Server, serving
from tfpipe.config import Remote
from tfpipe.data.sources.remote.fetcher import ByteRange, Fetcher, FetchError
from tfpipe.data.sources.remote.http_client import HttpClient
from tfpipe.errors import ConfigError

ABSENT = "http://files.invalid"


@pytest.fixture
def server(tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/0.JPEG").write_bytes(b"content")
    with serving(tmp_path / "files") as made:
        yield made


@pytest.fixture
def secure(tmp_path: Path):
    """An HTTPS server with a certificate of its own, and the file of that; /other/PATH redirects to /PATH."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path / "files"))

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if not self.path.startswith("/other/"):
                return super().do_GET()
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/other"))
            self.end_headers()

    (tmp_path / "files").mkdir()
    (tmp_path / "files/0.JPEG").write_bytes(b"content")
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.socket = context.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{made.server_port}", file
    made.shutdown()
    thread.join()
    made.server_close()


def certificate() -> bytes:
    """A certificate for 127.0.0.1 that it signs itself, with its key, as PEM."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = made.add_extension(host, critical=True).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    pem = serialization.Encoding.PEM
    return made.sign(key, hashes.SHA256()).public_bytes(pem) + key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def fetch(urls: list[str], **options: object) -> list[bytes | FetchError | None]:
    fetcher = Fetcher(Remote(retries=1, options=options), urls)
    assert fetcher._http is not None, "it takes these options"
    try:
        return fetcher.fetch(urls)
    finally:
        fetcher.close()


def test_a_server_whose_certificate_is_unknown_is_asked_once(secure: tuple[str, Path]) -> None:
    url = f"{secure[0]}/0.JPEG"
    (result,) = fetch([url])
    assert isinstance(result, FetchError)
    assert f"cannot fetch {url}: the server cannot be reached: ClientConnectorCertificateError" in str(result)
    assert "tried once" in str(result)


def test_certificates_are_those_that_python_trusts(secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure[1]))
    assert fetch([f"{secure[0]}/0.JPEG"]) == [b"content"]


def test_redirects_are_followed_but_not_forever(secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure[1]))
    allowed, one_more = (f"{secure[0]}{'/other' * count}/0.JPEG" for count in (10, 11))
    content, error = fetch([allowed, one_more])
    assert content == b"content"
    assert isinstance(error, FetchError) and "redirects followed; tried once" in str(error)


def test_a_redirection_to_nowhere_is_no_content(server: Server) -> None:
    server.fail = lambda path: 301
    (error,) = fetch([f"{server.url}/0.JPEG"])
    assert isinstance(error, FetchError) and "HTTP status 301 (Moved Permanently); tried once" in str(error)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nothing_of_a_request_leaves_its_origin(server: Server, tmp_path: Path, status: int) -> None:
    """A redirection is followed, also from a part of a file, and the headers of the options stay where they belong."""
    headers = {"X-Api-Key": "secret", "Authorization": "Bearer secret"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/0.JPEG").write_bytes(b"others")
    with serving(tmp_path / "other") as other:
        server.ranges = other.ranges = True
        fetcher = Fetcher(Remote(retries=0, options={"headers": headers}), [server.url])
        server.fail = lambda path: status if path == "moved" else None
        for place, content, received in (
            ("/0.JPEG", b"content", server),
            (f"{other.url}/0.JPEG", b"others", other),
            (f"{server.url.replace('127.0.0.1', 'localhost')}/0.JPEG", b"content", server),
        ):
            server.headers = {"Location": place}
            assert fetcher.fetch([f"{server.url}/moved"]) == [content]
            is_own = place.startswith("/")
            assert [name in received.received for name in headers] == [is_own, is_own], place
            assert fetcher.ranges([ByteRange(f"{server.url}/moved", 1, 4)]) == [content[1:4]]
        fetcher.fetch([f"{server.url}/0.JPEG"])
        assert server.received["X-Api-Key"] == "secret", "the next request is of its own origin"
        fetcher.close()


@pytest.mark.parametrize("place", ["file:///files/0.JPEG", "http://[", "http://[host]/0.JPEG"])
def test_a_redirection_to_a_file_of_this_host_or_to_no_url_is_refused(server: Server, place: str) -> None:
    server.fail, server.headers = lambda path: 302, {"Location": place}
    (error,) = fetch([f"{server.url}/0.JPEG"])
    assert isinstance(error, FetchError) and "HTTP status 302 (Found); tried once" in str(error)


def test_a_request_is_answered_by_its_own_response_alone(server: Server) -> None:
    """Also if it fails before the head of one, on a connection that has just been sent elsewhere."""
    server.fail = lambda path: 302 if path.startswith("moved") else None
    fetcher = Fetcher(Remote(retries=0, concurrency=1), [server.url])
    for place in (f"{ABSENT}/0.JPEG", f"{server.url}/0.JPEG"):
        server.headers = {"Location": place}
        moved, error = (fetcher.fetch([url])[0] for url in (f"{server.url}/moved.JPEG", f"{ABSENT}/1.JPEG"))
        assert (moved == b"content") is (ABSENT not in place) and "redirects followed" not in str(moved)
        assert isinstance(error, FetchError) and "redirects followed" not in str(error)
    fetcher.close()


def test_a_proxy_of_the_environment_is_used_only_if_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    url = f"{ABSENT}/0.JPEG"
    (result,) = fetch([url])
    assert isinstance(result, FetchError) and "the server cannot be reached: ClientConnectorError" in str(result)
    assert fetch([url], client_kwargs={"trust_env": True}) == [b"content"]
    for near in ("files.invalid", "files.invalid:80"):
        monkeypatch.setenv("no_proxy", near)
        beside = f"{ABSENT}:80/0.JPEG"
        assert isinstance(fetch([beside], client_kwargs={"trust_env": True})[0], FetchError), near
    monkeypatch.setenv("no_proxy", "files.invalid:81")
    assert fetch([beside], client_kwargs={"trust_env": True}) == [b"content"]


def test_headers_are_sent(server: Server) -> None:
    fetch([f"{server.url}/0.JPEG"], headers={"Authorization": "Bearer a"})
    assert server.received["Authorization"] == "Bearer a"
    fetch([f"{server.url}/0.JPEG"], client_kwargs={"headers": {"Authorization": "Bearer b"}})
    assert server.received["Authorization"] == "Bearer b"


def test_names_are_quoted_and_a_url_that_cannot_be_fails_alone(server: Server) -> None:
    (server.root / "a bé%.JPEG").write_bytes(b"other")
    urls = [f"{server.url}/{name}.JPEG" for name in ("a bé%25", "a%20b%C3%A9%25", "0")]
    *contents, wrong, invalid = fetch([*urls, "http://[bad/0.JPEG", "http://h\0st/0.JPEG"])
    assert contents == [b"other", b"other", b"content"]
    assert all(isinstance(error, FetchError) and "tried once" in str(error) for error in (wrong, invalid))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"client_kwargs": {"connector_owner": True}}, 'received "connector_owner"; accepted for http.*trust_env'),
        ({"ssl": False}, 'received "ssl"'),
        ({"headers": {"A": "a\0b"}}, "http:// cannot be used with these"),
    ],
)
def test_other_options_are_refused(options: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.remote\.options: {problem}"):
        Fetcher(Remote(options=options), ["https://host/"])


def test_a_header_may_have_any_letters(server: Server) -> None:
    assert fetch([f"{server.url}/0.JPEG"], headers={"A": "é\u20ac"}) == [b"content"]


def test_a_web_server_lists_no_folders(server: Server) -> None:
    with pytest.raises(FetchError, match="web servers list no folders; tried once"):
        Fetcher(Remote(), [server.url]).listings([server.url])


def test_a_connection_serves_one_request_after_another_and_a_lost_one_is_replaced(server: Server) -> None:
    client = HttpClient(Remote(concurrency=1))
    requests = [ByteRange(f"{server.url}/0.JPEG")] * 3
    try:
        assert client.submit(requests).result() == [b"content"] * 3
        server.stop()  # drops the connection that is open
        server.start()
        assert client.submit(requests).result() == [b"content"] * 3
    finally:
        client.close()
    assert client._thread is not None and not client._thread.is_alive()


def test_it_works_after_tensorflow_which_has_another_libcurl(secure: tuple[str, Path]) -> None:
    """A process that has loaded TensorFlow, whose symbols all libraries see, loads pycurl with its own libraries."""
    program = """
import sys, tensorflow
assert "pycurl" not in sys.modules
from tfpipe.config import Remote
from tfpipe.data.sources.remote.fetcher import Fetcher
fetcher = Fetcher(Remote(), ["https://"])
assert fetcher._http is not None
print(fetcher.fetch(sys.argv[1:]))
"""
    done = run(sys.executable, "-c", program, f"{secure[0]}/0.JPEG", SSL_CERT_FILE=str(secure[1]))
    assert done.out.strip() == "[b'content']", done.err
