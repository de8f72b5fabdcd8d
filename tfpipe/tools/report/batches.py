"""Writes a table of the traced batches, a row a batch, as CSV or Parquet."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tfpipe.data.runtime.recording import Recording, TracedBatch
from tfpipe.tools.report.runs import Ranks
from tfpipe.tools.report.samples import SampleTime, sample_times
from tfpipe.util.atomic_write import atomic_write, writing

PARQUET = ".parquet"


class BatchRow(NamedTuple):
    """A traced batch; the last four are None if no time of its samples was recorded."""

    batch: int  # number of its step, from 0 at the start of the process
    rank: int
    host: str
    ready_s: float  # when the pipeline had made it, in seconds since 1970
    taken_s: float  # when the step took it, in seconds since 1970
    wait_ms: float  # time that the step waited for it
    delay_ms: float  # time from ready to taken
    compute_ms: float  # the step without the wait and the allreduce
    reduce_ms: float  # the allreduce, with the wait for slower ranks
    crops: int
    positions: str  # stream positions of its samples, separated by spaces
    slowest_ms: float | None  # the longest time that one of its samples spent in a stage
    slowest_stage: str | None  # "read" or "decode"
    slowest_position: int | None
    slowest_file: str | None


def batch_rows(recordings: Iterable[Recording]) -> Iterator[BatchRow]:
    """Yields the rows of all ranks, in the order of the steps."""
    rows = [row for recording in recordings for row in _rows(recording)]
    yield from sorted(rows, key=lambda row: (row.batch, row.rank))


def write_batches(runs: Sequence[Ranks], path: Path) -> None:
    """Writes the batches of all ranks to `path`, as Parquet if its name ends with PARQUET, otherwise as CSV.

    Raises ConfigError if `path` cannot be written.
    """
    rows = list(batch_rows(trace.recording for ranks in runs for trace in ranks.traces))
    with writing(path), atomic_write(path) as partial:
        if path.suffix == PARQUET:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row._asdict() for row in rows]), partial)
            return
        with partial.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(BatchRow._fields)
            table.writerows(rows)


def name_positions(batch: TracedBatch) -> str:
    """Returns the stream positions of a batch's samples, each once, separated by spaces."""
    return " ".join(map(str, dict.fromkeys(batch.positions[:, 0].tolist())))


def slowest_sample(batch: TracedBatch, times: dict[int, list[SampleTime]]) -> SampleTime | None:
    """Returns the longest of the `times` (by position) of a batch's samples, None if none is known."""
    own = (time for position in set(batch.positions[:, 0].tolist()) for time in times.get(position, []))
    return max(own, key=lambda time: time.seconds, default=None)


def _rows(recording: Recording) -> Iterator[BatchRow]:
    times = sample_times(recording)
    for batch in recording.batches:
        slowest = slowest_sample(batch, times)
        yield BatchRow(
            batch.number,
            recording.rank,
            recording.host,
            ready_s=round(batch.ready_s, 6),
            taken_s=round(batch.taken_s, 6),
            wait_ms=_ms(batch.wait_s),
            delay_ms=_ms(batch.delay_s),
            compute_ms=_ms(batch.ended_s - batch.taken_s - batch.reduce_s),
            reduce_ms=_ms(batch.reduce_s),
            crops=len(batch.positions),
            positions=name_positions(batch),
            slowest_ms=None if slowest is None else _ms(slowest.seconds),
            slowest_stage=None if slowest is None else slowest.stage,
            slowest_position=None if slowest is None else slowest.position,
            slowest_file=None if slowest is None else recording.files.get(slowest.position),
        )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
