"""Reports the samples that `data.on_error` "skip" has left out, and why."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.crop_counts import most_crops
from tfpipe.data.failures.diagnose import replay
from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.stream import Cursor, SampleRef, Stream
from tfpipe.data.split import Failure, Split
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError

# Batches after which the samples left out are looked for if no caller asks before.
LOOK_EVERY = 1000
PASSED = "it could not be read when it was due, but can be read now"


class MissingSamples:
    """A detector of samples without a crop, from the positions of a rank's batches."""

    def __init__(self, stream: Stream, order: Order | Mixture, world: World) -> None:
        """Starts at `stream`, the rest of the stream from which the batches are built."""
        self._stream, self._order, self._world = stream, order, world
        self._last = -1

    def passed(self, batches: Sequence[np.ndarray]) -> SampleRef:
        """Returns the samples that gave no crop, up to the last one in the next batches.

        `batches` are consecutive batches' positions as from build_dataset, int64 [batch, 2] each, without gaps.
        """
        seen = np.concatenate([np.zeros((0, 2), np.int64), *batches])
        if not len(seen):
            return SampleRef(*np.zeros((3, 0), np.int64))
        rank, last = self._world.rank, Cursor.after(seen[-1])
        ahead = self._stream.moved(rank, last)
        count = (ahead.index(rank) - self._stream.index(rank)) // ahead.size + 1
        visits = self._stream.visits(self._order, self._world, count)
        # The crops of the first sample may have been in the batches before.
        new = visits.position != self._last
        missing = new & ~np.isin(visits.position, seen[:, 0])
        self._stream, self._last = ahead, last.position
        return SampleRef(*(column[missing] for column in visits))

    def rest(self, end: int) -> SampleRef:
        """Returns the samples left before position `end`; only for a stream that was fresh at the start."""
        rank = self._world.rank
        count = max(0, -(-(end - self._stream.index(rank)) // self._stream.size))
        visits = self._stream.visits(self._order, self._world, count)
        new = visits.position != self._last
        return SampleRef(*(column[new] for column in visits))


class DroppedSample(NamedTuple):
    """A sample that was left out: its stream position, file and reason."""

    position: int
    failure: Failure


class DroppedLog:
    """The samples that a rank has left out: those before the point that a state is of, and those after it."""

    def __init__(self, split: Split, most: float) -> None:
        """Allows the share `most` of an epoch's samples."""
        self._split, self._most = split, most
        self._settled: list[DroppedSample] = []
        self._open: list[DroppedSample] = []
        self._counts: Counter[int] = Counter()  # by epoch

    def add(self, samples: list[DroppedSample]) -> None:
        """Adds samples of batches that the state does not count yet."""
        self._open += samples
        self._counts.update(self._epochs(samples))

    @property
    def count(self) -> int:
        """Samples left out since the stream began, as far as they were looked for."""
        return sum(self._counts.values())

    def settle(self, end: float) -> None:
        """Settles the samples before stream position `end`: the state counts their batches."""
        self._settled += [sample for sample in self._open if sample.position < end]
        self._open = [sample for sample in self._open if sample.position >= end]

    def forget(self) -> None:
        """Forgets the samples that are not settled: they come again, and are then left out again."""
        self._counts.subtract(self._epochs(self._open))
        self._open = []

    def restart(self) -> None:
        """Begins to count the samples of epochs from zero."""
        self._counts.clear()

    def take(self) -> list[DroppedSample]:
        """Returns the samples settled since the last call."""
        settled, self._settled = self._settled, []
        return settled

    def check(self) -> None:
        """Raises TfpipeError if more samples of an epoch were left out than are allowed; names the last ones."""
        name, visits = self._split.catalog.split, self._split.order.length
        worst = max(self._counts.values(), default=0)
        if worst > self._most * visits:
            last = [*self._settled, *self._open][-3:]
            names = "; ".join(f"{sample.failure.path}: {sample.failure.reason}" for sample in last)
            raise TfpipeError(
                f"rank {self._split.world.rank}: {worst} of {visits} {name} samples cannot be used, "
                f"more than the {self._most:.4g} that data.max_bad_fraction lets be left out; the last ones are "
                f"{names or 'named by dropped()'}; tfpipe check finds all such files"
            )

    def _epochs(self, samples: list[DroppedSample]) -> list[int]:
        return [sample.position // self._split.order.length for sample in samples]


class Dropped:
    """Finds the samples that were left out, from the positions of a rank's batches.

    Costs nothing for samples that arrive. A missing sample is loaded again to find the reason; one without any
    object of a known class does not count as left out.
    """

    def __init__(self, split: Split, stream: Stream) -> None:
        """Starts at `stream`, from which the batches' dataset was built."""
        self._split = split
        self._gaps = MissingSamples(stream, split.order, split.world)
        self._known: dict[int, Failure | None] = {}
        self._batches: list[np.ndarray] = []

    def add(self, positions: np.ndarray) -> list[DroppedSample]:
        """Adds the next batch's positions, int64 [batch, 2]; every LOOK_EVERY batches, returns what `look` does."""
        self._batches.append(positions)
        return self.look() if len(self._batches) == LOOK_EVERY else []

    def look(self, batches: Sequence[np.ndarray] = (), end: bool = False) -> list[DroppedSample]:
        """Returns the samples that the batches added since the last call, and then `batches`, have left out.

        `batches` are positions as for `add`; `end` says whether they are the last ones of a test pass. Stored crops are
        never left out: a bad one ends the run.
        """
        batches, self._batches = [*self._batches, *batches], []
        if self._split.stores != "images":
            return []
        dropped = self._explained(self._gaps.passed(batches))
        if end:
            dropped += self._explained(self._gaps.rest(self._split.order.count))
        return dropped

    def _explained(self, visits: SampleRef) -> list[DroppedSample]:
        # A run may resume right after the last crop of a sample: then nothing of it is missing.
        rest = visits.first_crop < most_crops(self._split, visits.item)
        visits = SampleRef(*(column[rest] for column in visits))
        # A resumed sample whose crops were not counted before may have had all; that says nothing of its next visit.
        resumed = visits.first_crop > 0
        new = resumed | np.array([item not in self._known for item in visits.item.tolist()], bool)
        if new.any():
            self._learn(SampleRef(*(values[new] for values in visits)))
        failures = zip(visits.position.tolist(), [self._known[item] for item in visits.item.tolist()], strict=True)
        for item in visits.item[resumed].tolist():
            del self._known[item]
        return [DroppedSample(position, failure) for position, failure in failures if failure is not None]

    def _learn(self, visits: SampleRef) -> None:
        split, catalog = self._split, self._split.catalog
        samples = tf.data.Dataset.from_tensors(visits).map(Lookup(catalog).sample_paths).unbatch()
        for sample, outcome in zip(visits.item.tolist(), replay(samples, split), strict=True):
            image, _ = catalog.image_and_box(sample)
            if isinstance(outcome, tf.errors.OpError):
                self._known[sample] = split.explain(image, outcome)
            elif len(outcome.labels):
                self._known[sample] = Failure(split.name(image), PASSED)
            else:
                self._known[sample] = None
