"""How far a rank is in its stream: the batches it was given, and those of them that count as used."""

from collections import deque
from typing import Any, NamedTuple

from tfpipe.data.order.stream import Cursor, Stream

# Batches before the first commit that it can still count.
MOST_OPEN = 100


class Mark(NamedTuple):
    """A point between two batches of a rank."""

    step: int
    """Batches before it, since the stream began."""
    crops: int
    """Crops in those of them that this process was given."""
    cursor: Cursor | None
    """The rank's cursor there; None at the beginning of the stream."""


class Progress:
    """The batches that a rank was given, by their number and positions, and the batch that the state is of.

    That is the last one given until `commit` is called, then the last one committed.
    """

    def __init__(self, stream: Stream, rank: int, step: int = 0) -> None:
        """Starts at `stream`, before which the rank was given `step` batches."""
        self._rank, self._commits = rank, False
        self.restart(stream, step)

    def restart(self, stream: Stream, step: int, crops: int = 0) -> None:
        """Goes to the beginning of `stream`, before which the rank was given `step` batches, with `crops` crops."""
        self.stream = stream
        self._counted = self._given = Mark(step, crops, None)
        self._open: deque[Mark] = deque()

    def add(self, positions: Any) -> None:
        """Adds the next batch, of these positions, int64 [batch, 2]; it may be empty."""
        rows, (step, crops, cursor) = len(positions), self._given
        self._given = Mark(step + 1, crops + rows, Cursor.after(positions[-1]) if rows else cursor)
        self._open.append(self._given)
        if not self._commits and len(self._open) > MOST_OPEN:
            self._counted = self._open.popleft()

    def commit(self, step: int | None = None) -> None:
        """Counts the batches up to number `step`, or all, as used.

        Raises ValueError if batch `step` was not given, or before the first commit is not among the last MOST_OPEN.
        """
        step = self.given if step is None else step
        if not self._counted.step <= step <= self.given:
            raise ValueError(
                f"commit({step}): the last batch that counts can be {self._counted.step} to {self.given}; commit "
                f"in their order, the first time within {MOST_OPEN} batches"
            )
        self._commits = True
        while self._open and self._open[0].step <= step:
            self._counted = self._open.popleft()

    @property
    def given(self) -> int:
        """Number of the last batch given."""
        return self._given.step

    @property
    def crops(self) -> int:
        """Crops in the batches given."""
        return self._given.crops

    @property
    def used(self) -> Mark:
        """The point that the state is of."""
        return self._counted if self._commits else self._given

    def rest(self) -> Stream:
        """Returns the stream after the batch that the state is of; other ranks are where it starts."""
        return self._after(self.used)

    def ahead(self) -> Stream:
        """Returns the stream after the last batch given."""
        return self._after(self._given)

    def _after(self, mark: Mark) -> Stream:
        return self.stream if mark.cursor is None else self.stream.moved(self._rank, mark.cursor)
