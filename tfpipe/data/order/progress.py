"""How far a rank is in its stream: the batches it was given, and those of them that count as used."""

from collections import deque
from typing import Any

from tfpipe.data.order.stream import Cursor, Stream

# Batches before the first commit that it can still count.
MOST_OPEN = 100


class Progress:
    """The batches that a rank was given, by their number and positions, and the batch that the state is of.

    That is the last one given until `commit` is called, then the last one committed.
    """

    def __init__(self, stream: Stream, rank: int, step: int = 0) -> None:
        """Starts at `stream`, before which the rank was given `step` batches."""
        self._rank, self._commits = rank, False
        self.restart(stream, step)

    def restart(self, stream: Stream, step: int) -> None:
        """Goes to the beginning of `stream`, before which the rank was given `step` batches."""
        self.stream, self.given = stream, step
        self._open: deque[tuple[int, Any]] = deque()
        self._counted: tuple[int, Any] = (step, None)

    def add(self, positions: Any) -> None:
        """Adds the next batch, of these positions, int64 [batch, 2]."""
        self.given += 1
        self._open.append((self.given, positions))
        if not self._commits and len(self._open) > MOST_OPEN:
            self._counted = self._open.popleft()

    def commit(self, step: int | None = None) -> None:
        """Counts the batches up to number `step` as used, None: all."""
        self._commits = True
        while self._open and self._open[0][0] <= (self.given if step is None else step):
            self._counted = self._open.popleft()

    @property
    def used(self) -> int:
        """Number of the batch that the state is of."""
        return self._mark[0]

    def rest(self) -> Stream:
        """Returns the stream after the batch that the state is of; other ranks are where it starts."""
        return self._after(self._mark[1])

    def ahead(self) -> Stream:
        """Returns the stream after the last batch given."""
        return self._after((self._open[-1] if self._open else self._counted)[1])

    @property
    def _mark(self) -> tuple[int, Any]:
        return self._open[-1] if self._open and not self._commits else self._counted

    def _after(self, positions: Any) -> Stream:
        return self.stream if positions is None else self.stream.moved(self._rank, Cursor.after(positions[-1]))
