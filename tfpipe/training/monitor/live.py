"""Live figures of a training run: `training.metrics_port` serves them on rank 0, those of all ranks by interval."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from tfpipe.data.live.exporter import Collector, Exporter, family
from tfpipe.data.live.figures import LoaderCollector
from tfpipe.data.loader import Loader
from tfpipe.training.monitor.accounting import Accounting, IntervalFigures
from tfpipe.training.monitor.record import Record

logger = logging.getLogger(__name__)

THIS_HOST = "127.0.0.1:"
# Figures of a rank in an interval: name and unit here, name there, factor.
BY_RANK = (
    ("wait_seconds", "wait_ms", 1e-3, "Mean wait of a step for its batch in the last interval."),
    ("own_seconds", "own_ms", 1e-3, "Mean time of a step without the allreduce in the last interval."),
    ("transfer_seconds", "transfer_ms", 1e-3, "Mean time of a batch's copy to the model's device."),
    ("compute_seconds", "compute_ms", 1e-3, "Mean time of the training step without the allreduce."),
    ("callbacks_seconds", "callbacks_ms", 1e-3, "Mean time of the callbacks of a step in the last interval."),
    ("rest_seconds", "rest_ms", 1e-3, "Mean time between two steps besides the callbacks in the last interval."),
    ("delay_seconds", "delay_ms", 1e-3, "Mean time that a batch was ready before it was taken."),
    ("cpu_ratio", "cpu_fraction", 1.0, "Share of the rank's cores at work in the last interval."),
    ("memory_bytes", "memory_bytes", 1.0, "Resident memory at the end of the last interval."),
)


class RunCollector:
    """The figures of a run, as rank 0 has them: the last interval's by rank, and the last epoch's."""

    def __init__(self, loader: Loader, accounting: Accounting, record: Record) -> None:
        self._loader, self._accounting, self._record = loader, accounting, record

    def collect(self) -> Iterator[Any]:
        """Yields the families; the intervals' once an interval has ended, the metrics' once an epoch has."""
        meter, model = self._loader.meter, self._accounting.model
        yield family("tfpipe_run_steps_total", "Training steps of the run.", [((), meter.steps)])
        yield family("tfpipe_run_epoch", "Current epoch, from 1.", [((), meter.epoch)])
        left_out = 0 if model is None else model.dropped_images
        text = "Images left out of the current epoch on all ranks, as last counted."
        yield family("tfpipe_run_left_out_images", text, [((), left_out)])
        if (interval := self._accounting.latest) is not None:
            yield from interval_families(interval)
        metrics = [
            ((("name", name),), value) for name, value in self._record.logs.items() if isinstance(value, int | float)
        ]
        yield family("tfpipe_run_metric", "Figures of the last epoch, as in metrics.jsonl.", metrics)


def interval_families(interval: IntervalFigures) -> Iterator[Any]:
    """Yields the families of an interval: the rate over all ranks, the figures of each rank, and the straggler."""
    rate, wait = interval.images_per_second, interval.input_wait_fraction
    yield family("tfpipe_run_images_per_second", "Crops per second of all ranks in the last interval.", [((), rate)])
    yield family("tfpipe_run_input_wait_ratio", "Share of the time that steps wait for their batches.", [((), wait)])
    for name, key, factor, text in BY_RANK:
        samples = [((("rank", rank["rank"]), ("host", rank["host"])), factor * rank[key]) for rank in interval.ranks]
        yield family(f"tfpipe_rank_{name}", text, samples)
    if (slowest := interval.straggler) is not None:
        labels = tuple((name, slowest[name]) for name in ("rank", "host", "because"))
        text = "Own time of the slowest rank as a multiple of the others' median, if it is a straggler."
        yield family("tfpipe_straggler_times", text, [(labels, slowest["times"])])


@contextmanager
def live_metrics(loader: Loader, callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[None]:
    """Serves the figures of a run on rank 0 within `with`, if `training.metrics_port` asks for it.

    Every rank must call. Raises ConfigError, on every rank, if rank 0 cannot serve them.
    """
    place = loader.config.training.metrics_port
    with ExitStack() as served:

        def serve() -> None:
            accounting = next(callback for callback in callbacks if isinstance(callback, Accounting))
            record = next(callback for callback in callbacks if isinstance(callback, Record))
            collectors: list[Collector] = [LoaderCollector(loader), RunCollector(loader, accounting, record)]
            host, _, port = f"{THIS_HOST if isinstance(place, int) else ''}{place}".rpartition(":")
            exporter = served.enter_context(Exporter(collectors, int(port), host))
            logger.info("live metrics: %s", exporter.url)

        if place is not None:
            loader.world.from_rank0(serve)
        yield
