"""How far a rank is in its stream: one value, replaced whole by each batch that is handed out and each move."""

from typing import Any, NamedTuple

from tfpipe.data.order.stream import Cursor, Stream

# Batches before the first commit that it can still count.
MOST_OPEN = 100


class Mark(NamedTuple):
    """A point between two batches of a rank."""

    step: int
    """Batches before it, since all data began."""
    crops: int = 0
    """Crops in those of them that this process was given."""
    cursor: Cursor | None = None
    """The rank's cursor there; None at the beginning of the stream."""


class Position(NamedTuple):
    """The point that a rank has reached: what was handed out before it, and what of that the state counts."""

    stream: Stream
    """Stream at whose beginning the rank is or was, with the other ranks' cursors there."""
    first: Mark
    """The beginning of `stream`."""
    given: Mark
    """After the last batch that was handed out."""
    counted: Mark | None = None
    """After the last batch that was committed; None until there is a commit: the state is that of `given`."""
    crops_before: int = 0
    """Crops of all ranks before `stream`, of other numbers of ranks."""
    passes: int = 0
    """Passes over test data that have begun."""
    moves: int = 0
    """Times that the rank went elsewhere, instead of on to the next batch."""
    ended: bool = False
    """Whether a pass over test data has handed out its last batch."""

    @property
    def used(self) -> Mark:
        """The point that the state is of."""
        return self.given if self.counted is None else self.counted

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was handed out since the rank came here."""
        return self.given == self.first and not self.ended

    @property
    def is_over(self) -> bool:
        """Whether the state counts a whole pass over test data."""
        return self.ended and self.used.step == self.given.step

    def after(self, crops: Any) -> "Position":
        """Returns the position after the next batch, of these crops, int64 [batch, 2]; it may be empty."""
        given = self.given
        cursor = Cursor.after(crops[-1]) if len(crops) else given.cursor
        return self._replace(given=Mark(given.step + 1, given.crops + len(crops), cursor))

    def rest(self, rank: int, mark: Mark) -> Stream:
        """Returns the stream after a mark of the rank; the other ranks are where they were at its beginning."""
        return self.stream if mark.cursor is None else self.stream.moved(rank, mark.cursor)


class Progress:
    """A rank's position, and the marks of batches that a commit can still count.

    `at` is all that says how far the rank is: whoever stores an earlier value takes back what came after it. Marks of
    batches that were taken back stay until they are replaced, and cannot be committed.
    """

    def __init__(self, stream: Stream, rank: int) -> None:
        """Begins at `stream`, before which there was no batch."""
        self.start, self.rank = stream, rank
        self.at = Position(stream, Mark(0), Mark(0))
        self._marks = {0: Mark(0)}

    def next(self, crops: Any) -> Position:
        """Returns the position after the next batch, as Position.after, and keeps its mark; `at` stays."""
        after = self.at.after(crops)
        step = after.given.step
        self._marks[step] = after.given
        if after.counted is None:
            self._marks.pop(step - MOST_OPEN - 1, None)
        return after

    def commit(self, step: int | None = None) -> None:
        """Counts the batches up to number `step`, or all, as used.

        Raises ValueError if batch `step` was not given, or before the first commit is not among the last MOST_OPEN.
        """
        at, last = self.at, self.at.given.step
        step = last if step is None else step
        first = min(self._marks) if at.counted is None else at.counted.step
        if not first <= step <= last:
            raise ValueError(
                f"commit({step}): the last batch that counts can be {first} to {last}; commit "
                f"in their order, the first time within {MOST_OPEN} batches"
            )
        self.at = at._replace(counted=self._marks[step])
        for number in range(first, step):
            self._marks.pop(number, None)

    def go_back(self) -> None:
        """Goes to the point that the state is of, before which nothing can be committed any more."""
        used, over = self.at.used, self.at.is_over
        self._marks = {used.step: used}
        self.at = self.at._replace(given=used, moves=self.at.moves + 1, ended=over)

    def seek(self, stream: Stream, step: int = 0, crops_before: int = 0) -> None:
        """Goes to the beginning of `stream`, before which the rank had `step` batches, and all ranks `crops_before`."""
        at, first = self.at, Mark(step)
        counted = None if at.counted is None else first
        self._marks = {step: first}
        self.at = Position(stream, first, first, counted, crops_before, at.passes, at.moves + 1)

    @property
    def ahead(self) -> Stream:
        """The stream after the last batch handed out."""
        return self.at.rest(self.rank, self.at.given)

    @property
    def rest(self) -> Stream:
        """The stream after the batch that the state is of."""
        return self.at.rest(self.rank, self.at.used)
