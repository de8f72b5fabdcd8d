"""A profiler's trace of some steps, for `tfpipe report` and TensorBoard."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.distributed import World

# The name of the steps' marks; TensorBoard's step times are between marks that carry step_num and _r.
STEP = "train"


class Window(NamedTuple):
    """Which steps are traced, counted from 0 where a process begins."""

    first: int
    end: int  # not included

    @classmethod
    def parse(cls, text: str) -> "Window":
        """From "10:20", the steps 10 to 19.

        Raises:
            ValueError: it is not of that form, or empty.
        """
        first, colon, end = text.partition(":")
        with suppress(ValueError):
            if colon and 0 <= int(first) < int(end):
                return cls(int(first), int(end))
        raise ValueError(f'steps are given as FIRST:END, e.g. 10:20 for 10 to 19; received "{text}"')


class Tracer:
    """Marks every step, and has TensorFlow's profiler run during those of a window.

    A trace costs 2 to 3 MB for a thousand images, and a few tenths of a second when it is written.
    """

    def __init__(self, folder: Path, window: Window) -> None:
        """Args: where plugins/profile is to be, and which steps to trace."""
        self.folder, self.window = folder, window
        self.steps = 0
        """That have ended."""
        self._mark: Any = None
        self._running = False

    def begin(self) -> None:
        """A step begins."""
        import tensorflow as tf

        if self.steps == self.window.first:
            tf.profiler.experimental.start(str(self.folder))
            self._running = True
        if self._running:
            self._mark = tf.profiler.experimental.Trace(STEP, step_num=self.steps, _r=1)
            self._mark.__enter__()

    def end(self) -> None:
        """A step ends; after the window's last one the trace is written."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        self.steps += 1
        if self.steps == self.window.end:
            self.close()

    def close(self) -> None:
        """Writes the trace if it is still being recorded; what comes to an end early has one of fewer steps."""
        import tensorflow as tf

        if self._running:
            self._running = False
            tf.profiler.experimental.stop()


def trace_folder(run_dir: Path, world: World) -> Path:
    """Where a rank's trace goes: ranks of one host would else overwrite each other's."""
    return run_dir if world.rank == 0 else run_dir / f"rank-{world.rank}"
