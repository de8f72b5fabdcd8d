"""Live figures for Prometheus: an HTTP endpoint that reads them when it is scraped, and costs nothing in between."""

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from tfpipe.errors import ConfigError

LOOPBACK = "127.0.0.1"
# Connections at a time, and seconds without a byte that close one: each holds a descriptor, which reads need.
CONNECTIONS, IDLE_S = 16, 5.0
log = logging.getLogger(__name__)


class Collector(Protocol):
    """Yields prometheus_client's metric families at each scrape, from the thread that answers it."""

    def collect(self) -> Iterator[Any]: ...


class Exporter:
    """An HTTP server that answers /metrics in a thread of its own; `close`, or the end of `with`, ends it."""

    def __init__(self, collectors: Sequence[Collector], port: int, host: str = LOOPBACK) -> None:
        """Starts the server; port 0 takes a free one.

        Raises ConfigError if prometheus_client is not installed, or `host` and `port` cannot be listened on.
        """
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError as error:
            message = f"live metrics need prometheus_client ({error}): pip install 'tfpipe[metrics]'"
            raise ConfigError(message) from error
        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        try:
            self._server = _Server(host, port)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"live metrics cannot be served on {host}, port {port}: {error}; take another port, or 0 for a free one"
            ) from error
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port
        """Port that the server listens on."""
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        """Address to scrape."""

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops answering, and frees the port; in a forked child, which has no thread to end, its parent answers on."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Prints no line of each scrape."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers in a thread for each of at most CONNECTIONS; closes further ones."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self._free = threading.Semaphore(CONNECTIONS)
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = addresses[0][0], addresses[0][4]
        super().__init__((str(address[0]), port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a scrape from %s was not answered", client_address, exc_info=True)


def family(name: str, text: str, samples: Sequence[tuple[Sequence[tuple[str, Any]], float]]) -> Any:
    """Returns a metric family, a counter if its name ends with _total, else a gauge.

    `samples` are (labels, value), the labels as (name, value).
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    labels = [label for label, _ in samples[0][0]] if samples else ["rank"]
    result = kind(name, text, labels=labels)
    for pairs, value in samples:
        result.add_metric([str(label) for _, label in pairs], value)
    return result
