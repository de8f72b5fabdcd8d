"""The figures of a Loader that Prometheus reads."""

from collections.abc import Iterator
from typing import Any

from tfpipe.data.live.exporter import LOOPBACK, Exporter, family
from tfpipe.data.loader import Loader


class LoaderCollector:
    """The figures of a rank's Loader, labelled by rank and, for the work of the pipeline's stages, by stage."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def collect(self) -> Iterator[Any]:
        """Yields the families; counters begin at zero when the pipeline is built again, as Prometheus expects."""
        stats = self._loader.stats()
        yield self._family("batches_total", "Batches taken.", stats["batches"])
        yield self._family("images_total", "Crops in the batches taken.", stats["images"])
        yield self._family("wait_seconds_total", "Seconds that the loop has waited for batches.", stats["wait_s"])
        if "delay_s" in stats:
            delayed_s = stats["delay_s"] * stats["batches"]
            text = "Seconds that batches were ready before they were taken."
            yield self._family("delay_seconds_total", text, delayed_s)
        if "queue" in stats:
            yield self._family("queue_batches", "Batches that are ready and not taken.", stats["queue"])
        left_out = "Samples left out because their files cannot be used, looked for every 1,000 batches or when asked."
        yield self._family("left_out_samples_total", left_out, stats["left_out"])
        stages = stats["stages"]
        elements = "Blocks of samples, images, decoder calls or batches that a stage has produced."
        yield self._by_stage("elements_total", elements, {name: stage["elements"] for name, stage in stages.items()})
        busy_s = {name: stage["busy"] * stats["seconds"] for name, stage in stages.items()}
        yield self._by_stage("busy_seconds_total", "Seconds of a stage's threads at work or awaiting a CPU.", busy_s)
        calls = {name: stage["parallelism"] for name, stage in stages.items()}
        yield self._by_stage("parallelism", "Calls of a stage that may run at once.", calls)

    def _family(self, name: str, text: str, value: float) -> Any:
        return family(f"tfpipe_{name}", text, [((("rank", self._loader.world.rank),), value)])

    def _by_stage(self, name: str, text: str, values: dict[str, float]) -> Any:
        rank = self._loader.world.rank
        samples = [((("rank", rank), ("stage", stage)), value) for stage, value in values.items()]
        return family(f"tfpipe_stage_{name}", text, samples)


def serve_metrics(loader: Loader, port: int, host: str = LOOPBACK) -> Exporter:
    """Serves a Loader's figures to Prometheus at http://HOST:PORT/metrics, until the Exporter is closed.

        with tfpipe.Loader(config, ready=True) as loader, tfpipe.serve_metrics(loader, port=9400):
            for images, labels, ready in loader:
                ...

    Args:
        loader: a rank's Loader, of `tfpipe.torch` or `tfpipe.jax` too; with `ready` it also has its batches' delays.
        port: TCP port; 0: a free one, the Exporter's `port`. Ranks on one host need a port each: port + local_rank.
        host: address to listen on; "0.0.0.0" lets other hosts read the figures, without a password.

    Raises:
        ConfigError: prometheus_client is not installed, or the port is taken.
    """
    return Exporter([LoaderCollector(loader)], port, host)
