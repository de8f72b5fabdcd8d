"""A Loader's position, and the pipeline that is open there; `Pass` iterates over the batches of an epoch or a pass.

A batch counts once it is handed out, and stays in its source until the position has passed it. So what a signal handler
raises, e.g. KeyboardInterrupt, leaves the position, and the batch for the next call. This module knows no TensorFlow.
"""

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tfpipe.data.order.progress import Position, Progress
from tfpipe.data.order.stream import Stream

if TYPE_CHECKING:
    from tfpipe.data.delivery.taker import Taker
    from tfpipe.data.failures.batches import Batches
    from tfpipe.data.failures.missing import DroppedLog
    from tfpipe.data.runtime.meter import Meter

# Seconds that another thread's wait for a batch gets to end as the process ends.
END_S = 0.5
UNKNOWN = "the number of batches is not known before the XMLs are read: an index (tfpipe index) has it"
ANOTHER = (
    "another pass over the test data of this Loader has begun, and it has one at a time: for loops within each other, "
    "zip and threads that need a pass each need a Loader each, e.g. tfpipe.Loader(config, 'test', data=loader.data); "
    "threads that share a pass take the batches of one iterator, batches = iter(loader)"
)
Moves = list[tuple[Position, Position]]


class BatchTimeoutError(Exception):
    """No batch came in time."""


class Bounds(NamedTuple):
    """The batches of an epoch or a pass."""

    begin: Callable[[], Position]
    """Begins it, as the first batch is asked for; returns the position there."""
    length: int | None = None
    """Number of batches; None if only the XMLs tell."""
    end: float = math.inf
    """Step at which it ends."""
    ends_with_moves: bool = False
    """Whether it ends when the rank goes elsewhere."""


class Delivery:
    """A rank's position, and the pipeline that is open there. It has no reference to the Loader."""

    def __init__(
        self, opener: Callable[[Progress], "Taker"], progress: Progress, dropped: "DroppedLog", meter: "Meter"
    ) -> None:
        """Opens nothing yet: `opener` opens the pipeline where `progress` is; `dropped` finds samples left out."""
        self._open, self.progress, self.dropped, self.meter = opener, progress, dropped, meter
        self.lock = threading.RLock()
        self.taker: Taker | None = None
        self.is_held = False

    def open_taker(self) -> "Taker":
        """Returns the pipeline; opens it if it is not open."""
        if self.taker is None:
            self.dropped.find_dropped()
            self.dropped.begin(self.progress.ahead)
            self.meter.restart()
            self.taker = self._open(self.progress)
        return self.taker

    def wait_for_batches(self) -> "Batches":
        """Returns the batches of the pipeline, once it is built; raises the error of building it."""
        taker = self.open_taker()
        if (error := taker.failure()) is not None:
            self._end(error)
        return taker.batches

    def take(self, finish: Callable[[Any], Any], moves: Moves) -> Any:
        """Returns the next batch, as `finish` makes it; notes in `moves` how it moves the position.

        Raises StopIteration at the end of a pass, BatchTimeoutError, the pipeline's errors, and TfpipeError if too many
        samples were left out.
        """
        before = self.progress.at
        if before.ended:
            raise StopIteration
        taker = self.open_taker()
        taker.wait_until_built()  # no batch's wait: the first batch's file would seem to take as long
        self.meter.wait()
        answer = taker.peek(before.given.step + 1)
        if answer is None:
            raise BatchTimeoutError
        if answer.error is not None:
            self._end(answer.error)
        self.meter.take(answer.ready_s, answer.moved_s)
        self.dropped.add(answer.number, answer.positions)
        batch, after = finish(answer.batch), self.progress.next(answer.positions)
        moves.append((before, after))
        self.progress.at = after
        return batch

    def _end(self, error: BaseException) -> None:
        """Ends the pass, or the pipeline, which the next batch opens again at the position; raises `error`."""
        if not isinstance(error, StopIteration):
            self.release()
            raise error
        self.dropped.find_dropped(final=True)
        self.release()
        self.progress.at = self.progress.at._replace(ended=True)
        self.dropped.check()
        raise StopIteration

    def take_back(self, moves: Moves) -> None:
        """Takes back that a batch was handed out, unless another thread has moved the position since."""
        with self.lock:
            for before, after in moves:
                if self.progress.at is after:
                    self.progress.at = before

    def seek(self, stream: Stream, step: int = 0, crops_before: int = 0) -> None:
        """Goes to the beginning of `stream`, before which the rank had `step` batches, and all ranks `crops_before`."""
        with self._moving():
            self.dropped.restart()
            self.progress.seek(stream, step, crops_before)

    def go_back(self) -> None:
        """Goes to the point that the state is of."""
        with self._moving():
            self.progress.go_back()

    def begin_pass(self) -> Position:
        """Begins a whole pass over test data, or that of a state just loaded; returns the position."""
        with self.lock:
            if not self.progress.at.is_fresh:
                self.seek(self.progress.start)
            at = self.progress.at
            self.progress.at = at._replace(passes=at.passes + 1)
            return self.progress.at

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Ends the pipeline, also for another thread, before the position moves within `with`.

        Forgets what was left out of batches that do not count.
        """
        self.cancel()
        with self.lock:
            self.release()  # first: what interrupts the rest would leave a pipeline that gives nothing
            self.confirm_dropped()
            self.dropped.discard_unconfirmed()
            yield

    def confirm_dropped(self) -> None:
        """Confirms the samples left out of the batches that the state counts."""
        self.dropped.find_dropped()
        rank, at = self.progress.rank, self.progress.at
        self.dropped.confirm(math.inf if at.is_over else self.progress.rest.cursors[rank].position)

    def release(self) -> None:
        """Ends the pipeline and its thread; forgets it before, so that an interrupted end leaves none to wait for."""
        taker, self.taker = self.taker, None
        if taker is not None:
            taker.close()

    def cancel(self) -> None:
        """Ends another thread's wait for a batch, which would hold the lock until the batch is there."""
        if (taker := self.taker) is not None:
            taker.cancel()

    def shut_down(self) -> None:
        """Ends the pipeline as the process ends; threads that take batches, which are daemons, wait for that end."""
        self.is_held = True
        self.cancel()
        self.lock.acquire(timeout=END_S)
        if self.taker is not None:
            self.taker.close()


class HandOut(Iterator[Any]):
    """An iterator over a Delivery's batches; an exception at any of its lines leaves the batch for the next call."""

    _delivery: Delivery

    @abstractmethod
    def _take(self, moves: Moves) -> Any:
        """Takes the next batch with the lock, as Delivery.take does."""

    def __bool__(self) -> bool:
        """Returns True, without the length, which every rank must ask for, and which is not always known."""
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__module__}.{type(self).__name__} has a pipeline and threads, and cannot be pickled or "
            "copied: make another Loader of the same config, loader.config, in this process with data=loader.data, and "
            "take the state of this one to it by state_dict() and load_state_dict()"
        )

    def __next__(self) -> Any:
        """Returns the next batch: images, labels and, if asked for, positions and the time, as build_dataset does.

        Raises TfpipeError if a file, which it names, cannot be used, too many were left out, or no batch came in time.
        """
        moves: Moves = []
        try:
            return self._take(moves)
        except BaseException:
            self._delivery.take_back(moves)
            if self._delivery.is_held and threading.current_thread() is not threading.main_thread():
                threading.Event().wait()  # instead of printing an error while the process ends
            raise


class Pass(HandOut):
    """The batches of an epoch or a pass that are still to come; `len` is their number when it was made.

    Threads may share it: each batch goes to one of them. A pass over test data raises RuntimeError once another one has
    begun.
    """

    def __init__(self, delivery: Delivery, take: Callable[[Moves], Any], bounds: Bounds) -> None:
        self._delivery, self._take_next, self._bounds = delivery, take, bounds
        self._began: Position | None = None
        self._over = False

    def _take(self, moves: Moves) -> Any:
        with self._delivery.lock:
            if self._over:
                raise StopIteration
            if self._began is None:
                self._began = self._bounds.begin()
            at, began, bounds = self._delivery.progress.at, self._began, self._bounds
            if at.passes != began.passes:
                raise RuntimeError(ANOTHER)
            # Another thread may have taken the epoch's last batch.
            if at.given.step < bounds.end and not (bounds.ends_with_moves and at.moves != began.moves):
                with suppress(StopIteration):
                    return self._take_next(moves)
            self._over = True
            raise StopIteration

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if it is not known."""
        if self._bounds.length is None:
            raise TypeError(UNKNOWN)
        return self._bounds.length


def epochs(
    delivery: Delivery, take: Callable[[Moves], Any], begin: Callable[[], Position], steps: Callable[[], int]
) -> Callable[[], Iterator[Any]]:
    """Returns a function that gives the batches of an epoch, `steps()`, from the position that `begin` goes to.

    After an epoch of which all were given it gives the next ones: a repeated dataset asks for them while Keras has the
    last, which the state does not count yet.
    """
    ends: list[tuple[int, int]] = []

    def begin_next() -> Position:
        at = delivery.progress.at
        return at if ends == [(at.moves, at.given.step)] else begin()

    def batches() -> Iterator[Any]:
        yield from islice(Pass(delivery, take, Bounds(begin_next, ends_with_moves=True)), steps())
        ends[:] = [(delivery.progress.at.moves, delivery.progress.at.given.step)]

    return batches
