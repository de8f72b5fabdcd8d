"""Reports the samples that `data.on_error` "skip" has left out, and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from tfpipe.util.files import stamp

# Batches after which the samples left out are looked for if no caller asks before.
LOOK_EVERY = 1000
PASSED = "it could not be read when it was due, but can be read now"


def check_fraction(dropped: int, split: Split, most: float, names: str) -> None:
    """Raises TfpipeError if more than a share `most` of an epoch's samples were left out; `names` tells which ones."""
    samples = split.order.length
    if dropped > most * samples:
        raise TfpipeError(
            f"rank {split.world.rank}: {dropped} of {samples} {split.catalog.split} samples cannot be used, and "
            f"data.max_bad_fraction {most:.4g} allows {int(most * samples)}; {names} tfpipe check finds all such files"
        )


@dataclass(frozen=True)
class MissingSamples:
    """A point up to which samples without a crop were looked for, by the positions of a rank's batches."""

    stream: Stream
    """The rest of the stream there."""
    order: Order | Mixture
    world: World
    last: int = -1
    """Position of the last sample that gave a crop; -1 before the first."""

    def find_missing(self, batches: Sequence[np.ndarray]) -> tuple[SampleRef, "MissingSamples"]:
        """Returns the samples that gave no crop, up to the last one in the next batches, and the point after that.

        `batches` are consecutive batches' positions as from build_dataset, int64 [batch, 2] each, without gaps.
        """
        seen = np.concatenate([np.zeros((0, 2), np.int64), *batches])
        if not len(seen):
            return SampleRef(*np.zeros((3, 0), np.int64)), self
        rank, last = self.world.rank, Cursor.after(seen[-1])
        ahead = self.stream.moved(rank, last)
        visits = self._visits((ahead.index(rank) - self.stream.index(rank)) // ahead.size + 1)
        missing = ~np.isin(visits.position, seen[:, 0])
        return SampleRef(*(column[missing] for column in visits)), replace(self, stream=ahead, last=last.position)

    def rest(self, end: int) -> SampleRef:
        """Returns the samples left before position `end`."""
        return self._visits(self.stream.count(self.world.rank, end))

    def _visits(self, count: int) -> SampleRef:
        visits = self.stream.visits(self.order, self.world, count)
        # The crops of the first sample may have been in the batches before.
        new = visits.position != self.last
        return SampleRef(*(column[new] for column in visits))


class DroppedSample(NamedTuple):
    """A sample that was left out: its stream position, file and reason."""

    position: int
    failure: Failure


class DroppedLog:
    """Finds the samples that a rank's batches have left out: those before the point that a state is of, and after it.

    Costs nothing for samples that arrive. A missing sample is loaded again to find the reason; one without any object
    of a known class does not count as left out. Whatever is interrupted can be repeated, and counts once.
    """

    def __init__(self, split: Split, most: float) -> None:
        """Allows the share `most` of an epoch's samples, of all ranks."""
        self._split, self._most = split, most
        # Stored crops are never left out: a bad one ends the run.
        self._looks = split.config.on_error == "skip" and split.stores == "images"
        self._confirmed: list[DroppedSample] = []
        self._confirmed_counts, self._end = Counter[int](), 0.0  # by epoch; the position before which they count
        self._open: dict[int, DroppedSample] = {}  # by position
        self._empty: dict[int, Any] = {}  # stamps of the files of samples that have no crop
        self._unchecked = False
        self.begin(Stream.start(split.world.size))

    def begin(self, stream: Stream) -> None:
        """Looks at the batches from a point of the stream on."""
        self._batches: dict[int, np.ndarray] = {}
        self._point = MissingSamples(stream, self._split.order, self._split.world)

    def add(self, number: int, positions: np.ndarray) -> None:
        """Adds the positions, int64 [batch, 2], of batch `number`, the next one; every LOOK_EVERY batches, looks.

        Raises TfpipeError as `check` does.
        """
        if self._looks:
            self._batches[number] = positions.copy()  # the user's own may change
            if len(self._batches) >= LOOK_EVERY:
                self.find_dropped()
        if self._unchecked:
            self.check()

    def find_dropped(self, final: bool = False) -> None:
        """Looks for samples left out of the batches added; `final` says whether they are a test pass' last ones."""
        if not self._looks:
            return
        missing, point = self._point.find_missing(list(self._batches.values()))
        for visits in (missing, *([point.rest(self._split.order.count)] if final else [])):
            self._open |= {sample.position: sample for sample in self._explain(visits)}
        self._point, self._batches, self._unchecked = point, {}, True

    @property
    def counts(self) -> dict[int, int]:
        """Samples left out since the stream began, as far as they were looked for, by epoch."""
        return dict(self._confirmed_counts + self._epochs(self._open.values()))

    @property
    def count(self) -> int:
        """Samples left out since the stream began, as far as they were looked for."""
        return sum(self.counts.values())

    def confirm(self, end: float) -> None:
        """Confirms the samples before stream position `end`: the state counts their batches."""
        self._end = end = max(end, self._end)  # a first commit may go back: what was confirmed comes again
        confirmed = [sample for position, sample in self._open.items() if position < end]
        rest = {position: sample for position, sample in self._open.items() if position >= end}
        counts = self._confirmed_counts + self._epochs(confirmed)
        self._confirmed, self._confirmed_counts, self._open = [*self._confirmed, *confirmed], counts, rest

    def discard_unconfirmed(self) -> None:
        """Discards the samples that are not confirmed: they come again, and are then left out again."""
        self._open, self._batches = {}, {}

    def restart(self) -> None:
        """Begins to count the samples of epochs from zero, and to tell of them."""
        self._confirmed_counts, self._end = Counter(), 0.0

    def pop_confirmed(self) -> list[DroppedSample]:
        """Returns the samples confirmed since the last call."""
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def check(self, ranks: Sequence[dict[int, int]] = ()) -> None:
        """Raises TfpipeError if more samples of an epoch were left out than are allowed; names the last ones.

        `ranks` are the `counts` of all ranks; without them, this rank's alone count.
        """
        worst = max(sum(map(Counter, ranks or [self.counts]), Counter()).values(), default=0)
        last = [*self._confirmed, *self._open.values()][-3:]
        names = "; ".join(f"{sample.failure.path}: {sample.failure.reason}" for sample in last)
        check_fraction(worst, self._split, self._most, f"the last ones are {names or 'on other ranks'};")
        self._unchecked = False

    def _epochs(self, samples: Any) -> Counter[int]:
        positions = np.array([sample.position for sample in samples], np.int64)
        return Counter(self._split.order.epochs(positions, self._split.world).tolist())

    def _explain(self, visits: SampleRef) -> list[DroppedSample]:
        split, catalog = self._split, self._split.catalog
        # A run may resume right after the last crop of a sample: then nothing of it is missing.
        rest = (visits.first_crop < most_crops(split, visits.item)) & (visits.position >= self._end)
        visits = SampleRef(*(column[rest] for column in visits))
        stored = [self._empty.get(item) == self._stamps(item) for item in visits.item.tolist()]
        visits = SampleRef(*(column[~np.array(stored, bool)] for column in visits))
        if not len(visits.item):
            return []
        samples = tf.data.Dataset.from_tensors(visits).map(Lookup(catalog).sample_paths).unbatch()
        dropped = []
        for position, item, first, outcome in zip(*map(np.ndarray.tolist, visits), replay(samples, split), strict=True):
            image, _ = catalog.image_and_box(item)
            if isinstance(outcome, tf.errors.OpError):
                dropped.append(DroppedSample(position, split.explain(image, outcome)))
            elif len(outcome.labels):
                dropped.append(DroppedSample(position, Failure(split.name(image), PASSED)))
            elif not first:
                # A resumed sample whose crops were not counted before may have had all.
                self._empty[item] = self._stamps(item)
        return dropped

    def _stamps(self, item: int) -> tuple[Any, ...]:
        """Returns the stamps of a sample's files, by which a later change is noticed; of records there are none."""
        return tuple(map(stamp, self._split.files(self._split.catalog.image_and_box(item)[0])))
