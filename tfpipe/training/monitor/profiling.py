"""The callback that traces some of a run's steps."""

import logging
from typing import Any

import keras

from tfpipe.data.runtime.recording import TracedBatch
from tfpipe.data.runtime.tracing import Tracer

logger = logging.getLogger(__name__)


class Profile(keras.callbacks.Callback):
    """Reports steps to a tracer; comes first, so that a traced step does not include the other callbacks."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.tracer.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        meter = self.model.meter
        last, taken_s = meter.last, meter.taken_at_s
        times_s = (taken_s - last.wait_s, taken_s - last.delay_s, taken_s, taken_s + last.busy_s, last.reduce_s)
        self.tracer.end(TracedBatch(meter.steps - 1, *times_s, self.model.positions.numpy()))
        if self.tracer.steps == self.tracer.window.end:
            logger.info("steps %d to %d are traced in %s", *self._traced(), self.tracer.folder)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.tracer.close()
        if self.tracer.steps < self.tracer.window.end:
            done, (first, last) = self.tracer.steps, self._traced()
            logger.warning("--profile asks for the steps %d to %d, but the run has ended after %d", first, last, done)

    def _traced(self) -> tuple[int, int]:
        return self.tracer.window.first, self.tracer.window.end - 1
