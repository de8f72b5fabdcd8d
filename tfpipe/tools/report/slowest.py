"""The batches that were waited for longest: their slowest samples, and their timeline."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfpipe.data.runtime.recording import Recording, TracedBatch
from tfpipe.tools.page.figures import GRAY, RED, Bar, Figure, draw_rows
from tfpipe.tools.report.samples import SampleTime, sample_times, slowest_sample

# Batches in the table of those that waited longest, and samples of a batch.
WORST, SAMPLES = 20, 12
WAIT, COMPUTE, REDUCE, READY = "wait for input", "compute", "reduce", "ready, not taken"
PARTS = {WAIT: RED, COMPUTE: "#3b82c4", REDUCE: "#e07b39", READY: GRAY}


class WorstBatch(NamedTuple):
    """A traced batch that its step waited for."""

    anchor: str
    rank: int
    host: str
    number: int
    wait_ms: float
    delay_ms: float
    compute_ms: float
    slowest: SampleTime | None
    file: str | None
    samples: Sequence[tuple[str, str, str]]  # file, stage and milliseconds of its slowest samples
    batch: TracedBatch


def worst_batches(recordings: Sequence[Recording]) -> list[WorstBatch]:
    """Returns the batches of all ranks that were waited for longest, at most WORST, the longest wait first."""
    every = [(recording, batch) for recording in recordings for batch in recording.batches]
    every.sort(key=lambda pair: -pair[1].wait_s)
    times = {recording.rank: sample_times(recording) for recording in recordings}
    return [_worst(recording, batch, times[recording.rank]) for recording, batch in every[:WORST]]


def _worst(recording: Recording, batch: TracedBatch, times: dict[int, list[SampleTime]]) -> WorstBatch:
    slowest = slowest_sample(batch, times)
    positions = list(dict.fromkeys(batch.positions[:, 0].tolist()))
    known = sorted((time for position in positions for time in times.get(position, [])), key=lambda time: -time.seconds)

    def name(position: int) -> str:
        return recording.files.get(position, f"position {position}")

    samples = [(name(time.position), time.stage, f"{1000 * time.seconds:.2f}") for time in known[:SAMPLES]]
    samples = samples or [(name(position), "", "") for position in positions[:SAMPLES]]
    return WorstBatch(
        f"batch-{recording.rank}-{batch.number}",
        recording.rank,
        recording.host,
        batch.number,
        1000 * batch.wait_s,
        1000 * batch.delay_s,
        1000 * (batch.ended_s - batch.taken_s - float(batch.reduce_s)),
        slowest,
        None if slowest is None else recording.files.get(slowest.position),
        samples,
        batch,
    )


def timeline(batches: Sequence[WorstBatch]) -> Figure | None:
    """Returns the figure of the worst batches: what their steps did, from the wait for the batch to the step's end."""
    if not batches:
        return None
    rows: list[tuple[str, list[Bar]]] = []
    for worst in batches:
        name = f"rank {worst.rank}, batch {worst.number}"
        rows.append((name, list(_bars(worst, f"{name}, {worst.file}" if worst.file else name))))
    text = (
        f"The {len(batches)} traced batches that were waited for longest, from {batches[0].wait_ms:.1f} to "
        f"{batches[-1].wait_ms:.1f} ms, each from the beginning of the wait to the end of its step."
    )
    svg = draw_rows(rows, "ms since the step asked for its batch", PARTS, "timeline")
    return Figure("timeline", "The batches that were waited for longest", text, svg, (), ())


def _bars(worst: WorstBatch, title: str) -> Iterator[Bar]:
    began_s, ready_s, taken_s, ended_s = worst.batch[1:5]
    computed_s = ended_s - float(worst.batch.reduce_s)
    # A batch may have been ready for long before the step asked for it: at most a step's length of that is drawn.
    ready_s = max(ready_s, began_s - (ended_s - began_s))
    spans = (
        (ready_s, began_s, READY),
        (began_s, taken_s, WAIT),
        (taken_s, computed_s, COMPUTE),
        (computed_s, ended_s, REDUCE),
    )
    for start_s, end_s, part in spans:
        if end_s > start_s:
            ms = 1000 * (end_s - start_s)
            yield Bar(1000 * (start_s - began_s), ms, PARTS[part], f"{title}: {part} {ms:.1f} ms")
