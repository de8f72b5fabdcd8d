"""The record of a trace's batches and samples, which is written next to the profiler's trace; needs no TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.native import core
from tfpipe.util.atomic_write import atomic_write

RECORDING = "tfpipe.npz"


class TracedBatch(NamedTuple):
    """A batch of a traced step; all but `reduce_s` are seconds since 1970."""

    number: int  # of its step, from 0 at the start of the process
    began_s: float  # the wait for it began
    ready_s: float  # the pipeline had made it
    taken_s: float  # the wait ended
    ended_s: float  # its step ended
    reduce_s: Any  # seconds of the step in the allreduce: a float, or a scalar of a device that converts to one
    positions: np.ndarray  # int64 [batch, 2]: stream position and crop number

    @property
    def wait_s(self) -> float:
        """Seconds that the step waited for it."""
        return self.taken_s - self.began_s

    @property
    def delay_s(self) -> float:
        """Seconds from the batch being ready to it being taken."""
        return self.taken_s - self.ready_s


# As files have it: the number of the batch's samples in the place of their positions.
BATCH = np.dtype([("number", "i8"), *((name, "f8") for name in TracedBatch._fields[1:-1]), ("samples", "i8")])


class Recording(NamedTuple):
    """Batches and samples of a rank's trace."""

    rank: int
    host: str
    batches: Sequence[TracedBatch]
    files: Mapping[int, str]  # name of the image's file, by stream position
    events: np.ndarray  # native.Core.event [n]


def empty_recording() -> Recording:
    """Returns the recording of a trace that neither train.py nor tfpipe bench has taken."""
    return Recording(0, "", (), {}, np.zeros(0, core().event))


def write_recording(folder: Path, recording: Recording) -> None:
    """Writes RECORDING in `folder`. Raises OSError."""
    rank, host, batches, files, events = recording
    rows = np.array([(*batch[:5], float(batch.reduce_s), len(batch.positions)) for batch in batches], BATCH)
    positions = np.concatenate([np.zeros((0, 2), np.int64), *(batch.positions for batch in batches)])
    names = np.array([files[position] for position in sorted(files)] or [""])
    named = np.array(sorted(files), np.int64)
    with atomic_write(folder / RECORDING) as partial, partial.open("wb") as file:
        fields: dict[str, Any] = {"rank": rank, "host": host, "named": named, "names": names}
        np.savez_compressed(file, batches=rows, positions=positions, events=events, **fields)


def read_recording(folder: Path) -> Recording | None:
    """Reads RECORDING in `folder`; None if there is none, as in a trace of another program."""
    path = folder / RECORDING
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        rows, positions = stored["batches"], stored["positions"]
        starts = np.concatenate([[0], np.cumsum(rows["samples"])])
        batches = [
            TracedBatch._make((*row[:-1], positions[start : start + row[-1]]))
            for row, start in zip(rows.tolist(), starts, strict=False)
        ]
        files = dict(zip(stored["named"].tolist(), stored["names"].tolist(), strict=False))
        events = stored["events"].astype(core().event)
        return Recording(int(stored["rank"]), str(stored["host"]), batches, files, events)
