"""A profiler's trace of some steps, for `tfpipe report` and TensorBoard."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.distributed import World

# Name of the step marks; TensorBoard measures step times between marks that carry step_num and _r.
STEP = "train"


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

    def __init__(self, folder: Path, window: Window) -> None:
        """Takes the folder in which to write plugins/profile, and the steps to trace."""
        self.folder, self.window = folder, window
        self.steps = 0
        """Number of steps that have ended."""
        self._mark: Any = None
        self._running = False

    def begin(self) -> None:
        """Begins a step; at the window's first one the profiler starts."""
        import tensorflow as tf

        if self.steps == self.window.first:
            tf.profiler.experimental.start(str(self.folder))
            self._running = True
        if self._running:
            self._mark = tf.profiler.experimental.Trace(STEP, step_num=self.steps, _r=1)
            self._mark.__enter__()

    def end(self) -> None:
        """Ends a step; after the window's last one the trace is written."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        self.steps += 1
        if self.steps == self.window.end:
            self.close()

    def close(self) -> None:
        """Writes the trace if it is still being recorded; a run that ends early gets a trace of fewer steps."""
        import tensorflow as tf

        if self._running:
            self._running = False
            tf.profiler.experimental.stop()


def trace_folder(run_dir: Path, world: World) -> Path:
    """Returns the folder of a rank's trace; in a shared one, ranks of a host would overwrite each other's traces."""
    return run_dir if world.rank == 0 else run_dir / f"rank-{world.rank}"
