"""Live figures for Prometheus: an HTTP endpoint that reads them when it is scraped, and costs nothing in between."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tfpipe.errors import ConfigError

LOOPBACK = "127.0.0.1"


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
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            message = f"live metrics need prometheus_client ({error}): pip install 'tfpipe[metrics]'"
            raise ConfigError(message) from error
        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"live metrics cannot be served on {host}, port {port}: {error}; take another port, or 0 for a free one"
            ) from error
        self.port: int = self._server.server_port
        """Port that the server listens on."""
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        """Address to scrape."""

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops answering, and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
