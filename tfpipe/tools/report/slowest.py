"""The batches that were waited for longest: their slowest samples, and their timeline."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfpipe.data.runtime.recording import Recording
from tfpipe.tools.report.figures import GRAY, RED, Bar, Figure, draw_rows
from tfpipe.tools.report.samples import BatchRow, batch_rows, sample_times

# Batches in the table of those that waited longest, and samples of a batch.
WORST, SAMPLES = 20, 12
PARTS = {"wait for input": RED, "compute": "#3b82c4", "reduce": "#e07b39", "ready, not taken": GRAY}


class WorstBatch(NamedTuple):
    """A traced batch that its step waited for, with file, stage and milliseconds of its slowest samples."""

    row: BatchRow
    samples: Sequence[tuple[str, str, str]]

    @property
    def anchor(self) -> str:
        """Identifier on the page."""
        return f"batch-{self.row.rank}-{self.row.batch}"


def worst_batches(recordings: Sequence[Recording]) -> list[WorstBatch]:
    """Returns the batches of all ranks that were waited for longest, at most WORST, the longest wait first."""
    found: list[WorstBatch] = []
    for recording in recordings:
        times = sample_times(recording)
        for row in sorted(batch_rows(recording, times), key=lambda row: -row.wait_ms)[:WORST]:
            positions = list(map(int, row.positions.split()))
            known = sorted((time for each in positions for time in times.get(each, [])), key=lambda time: -time.seconds)
            shown = [(time.position, time.stage, f"{1000 * time.seconds:.2f}") for time in known]
            shown = (shown or [(position, "", "") for position in positions])[:SAMPLES]
            names = [recording.files.get(position, f"position {position}") for position, *_ in shown]
            samples = [(name, stage, ms) for name, (_, stage, ms) in zip(names, shown, strict=True)]
            found.append(WorstBatch(row, samples))
    return sorted(found, key=lambda worst: -worst.row.wait_ms)[:WORST]


def timeline(batches: Sequence[WorstBatch]) -> Figure | None:
    """Returns the figure of the worst batches: what their steps did, from the wait for the batch to the step's end."""
    if not batches:
        return None
    rows = {f"rank {row.rank}, batch {row.batch}": list(_bars(row)) for row, _ in batches}
    text = (
        f"The {len(batches)} traced batches that were waited for longest, from {batches[0].row.wait_ms:.1f} to "
        f"{batches[-1].row.wait_ms:.1f} ms, each from the beginning of the wait to the end of its step."
    )
    svg = draw_rows(rows, "ms since the step asked for its batch", PARTS, "timeline")
    return Figure("timeline", "The batches that were waited for longest", text, svg, (), ())


def _bars(row: BatchRow) -> Iterator[Bar]:
    title = f"rank {row.rank}, batch {row.batch}{f', {row.slowest_file}' if row.slowest_file else ''}"
    computed_ms = row.wait_ms + row.compute_ms
    ended_ms = computed_ms + row.reduce_ms
    # A batch may have been ready for long before the step asked for it: at most a step's length of that is drawn.
    ready_ms = max(row.wait_ms - row.delay_ms, -ended_ms)
    starts = 0.0, row.wait_ms, computed_ms, ready_ms
    for (part, colour), start_ms, end_ms in zip(
        PARTS.items(), starts, (row.wait_ms, computed_ms, ended_ms, 0.0), strict=True
    ):
        if end_ms > start_ms:
            ms = end_ms - start_ms
            yield Bar(start_ms, ms, colour, f"{title}: {part} {ms:.1f} ms")
