"""A profiler's trace of some steps, for `tfpipe report` and TensorBoard."""

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.data.runtime.recording import Recording, TracedBatch, write_recording
from tfpipe.distributed import World
from tfpipe.native import core

logger = logging.getLogger(__name__)

# Name of the step marks; TensorBoard measures step times between marks that carry step_num and _r.
STEP = "train"
# Events of samples are recorded this many steps before the window: its first batches are read before it. The newest
# EVENTS are kept, those of about 80,000 samples.
EARLIER, EVENTS = 100, 2**19


class Window(NamedTuple):
    """The range of steps to trace, counted from 0 at the start of the process."""

    first: int
    end: int  # not included

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Parses "10:20" as the steps 10 to 19.

        Raises ValueError if the text is not of that form, or the range is empty.
        """
        first, colon, end = text.partition(":")
        with suppress(ValueError):
            if colon and 0 <= int(first) < int(end):
                return cls(int(first), int(end))
        raise ValueError(f'steps are given as FIRST:END, e.g. 10:20 for 10 to 19; received "{text}"')


class Tracer:
    """Marks every step, and runs TensorFlow's profiler during the steps of a window.

    A trace takes 2 to 3 MB per thousand images, and a few tenths of a second to write.
    """

    def __init__(
        self,
        folder: Path,
        window: Window,
        rank: int = 0,
        name_files: Callable[[Sequence[int]], Sequence[str]] = lambda _: [],
    ) -> None:
        """Takes the folder in which to write plugins/profile, and the steps to trace.

        `name_files` returns the names of the samples' files by their stream positions, for the record of the batches.
        """
        self.folder, self.window, self.rank = folder, window, rank
        self.steps = 0
        """Number of steps that have ended."""
        self._name_files = name_files
        self._batches: list[TracedBatch] = []
        self._mark: Any = None
        self._recording = self._running = False
        if rank == 0 and find_spec("xprof") is None:
            logger.info("tfpipe report reads the trace by xprof, which is not installed: pip install 'tfpipe[profile]'")

    def begin(self) -> None:
        """Begins a step; at the window's first one the profiler starts."""
        import tensorflow as tf

        if self.steps == max(0, self.window.first - EARLIER):
            core().record(EVENTS)
            self._recording = True
        if self.steps == self.window.first:
            tf.profiler.experimental.start(str(self.folder))
            self._running = True
        if self._running:
            self._mark = tf.profiler.experimental.Trace(STEP, step_num=self.steps, _r=1)
            self._mark.__enter__()

    def end(self, batch: TracedBatch | None = None) -> None:
        """Ends a step; after the window's last one the trace is written, with a record of the batches."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
            self._batches += [] if batch is None else [batch._replace(number=self.steps)]
        self.steps += 1
        if self.steps == self.window.end:
            self.close()

    def close(self) -> None:
        """Writes the trace if it is still being recorded; a run that ends early gets a trace of fewer steps."""
        import tensorflow as tf

        events = core().end_recording() if self._recording else np.zeros(0, core().event)
        self._recording = False
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            self._record(events)

    def _record(self, events: np.ndarray) -> None:
        positions = sorted({int(position) for batch in self._batches for position in batch.positions[:, 0]})
        files = dict(zip(positions, self._name_files(positions), strict=False))
        newest = max(self.folder.glob("plugins/profile/*"))
        write_recording(newest, Recording(self.rank, socket.gethostname(), self._batches, files, events))


def trace_folder(run_dir: Path, world: World) -> Path:
    """Returns the folder of a rank's trace; in a shared one, ranks of a host would overwrite each other's traces."""
    return run_dir if world.rank == 0 else run_dir / f"rank-{world.rank}"
