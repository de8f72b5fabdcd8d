"""The endpoint for Prometheus: what its clients do costs the training no descriptor, and it answers again."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice
from typing import Any

import pytest

from tests.support.commands import WARM, finish, start
from tfpipe.data.live import exporter
from tfpipe.data.live.exporter import CONNECTIONS, Exporter, family
from tfpipe.errors import ConfigError


class One:
    """A collector of one figure."""

    def collect(self) -> Iterator[Any]:
        yield family("tfpipe_test", "A figure.", [([("rank", 0)], 7.0)])


def scraped(served: Exporter) -> str:
    with urllib.request.urlopen(served.url, timeout=60) as answer:
        return answer.read().decode()


def test_idle_connections_are_few_and_are_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter._Handler, "timeout", 60.0)
    with Exporter([One()], 0) as served, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(100)]
        closed = [each for each in idle[CONNECTIONS:] if each.recv(1) == b""]
        assert len(closed) == 100 - CONNECTIONS
        with pytest.raises(OSError):
            scraped(served)
    monkeypatch.setattr(exporter._Handler, "timeout", 0.5)
    with Exporter([One()], 0) as served, ExitStack() as stack:
        connected = (stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in count())
        first = next(connected)
        first.sendall(b"GET /metr")
        idle = [first, *islice(connected, CONNECTIONS - 1)]
        assert [each.recv(1) for each in idle] == [b""] * CONNECTIONS
        assert 'tfpipe_test{rank="0"} 7.0' in scraped(served)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no such host", 0), ("192.0.2.1", 0)])
def test_a_place_that_cannot_be_listened_on_is_refused(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match=f"live metrics cannot be served on {host}, port {port}: "):
        Exporter([One()], port, host)


FORKED = """
import os, socket, sys, urllib.request
from tfpipe.data.live.exporter import Exporter

def scraped():
    with urllib.request.urlopen(served.url, timeout=60) as answer:
        return answer.status

served = Exporter([], 0)
child = os.fork()
if not child:
    served.close()
    os._exit(scraped() != 200)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, scraped())
served.close()
socket.create_server(("127.0.0.1", served.port)).close()
"""


def test_a_forked_child_closes_it_at_once_and_its_parent_answers_on() -> None:
    done = finish(start(*WARM, "-c", FORKED))
    assert (done.code, done.out) == (0, "0 200\n"), done.err
