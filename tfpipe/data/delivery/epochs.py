"""A Loader's epochs and passes: their lengths, iterators over them, and a tf.data.Dataset of one an iteration."""

import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import tensorflow as tf

from tfpipe.data.crop_counts import CropCount, count_crops, own_crops
from tfpipe.data.order.progress import Progress
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.runtime.shutdown import close_at_exit
from tfpipe.data.split import Split

UNKNOWN = "the number of batches is not known before the XMLs are read: an index (tfpipe index) has it"


class Pass(Iterator[Any]):
    """The batches of an epoch or a pass that are still to come; `len` is their number when it was made.

    Threads may share it: each batch goes to one of them.
    """

    def __init__(self, take: Callable[[], Any], lock: threading.RLock, length: int | None = None) -> None:
        """Takes batches by `take`, which raises StopIteration after the last one, while it holds `lock`.

        `length` is their number, or None if only the XMLs tell.
        """
        self._take, self._lock, self._length, self._over = take, lock, length, False

    def __next__(self) -> Any:
        """Returns the next batch, as the Loader does."""
        with self._lock:
            try:
                if not self._over:
                    return self._take()
            except StopIteration:
                self._over = True
            raise StopIteration

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if it is not known."""
        if self._length is None:
            raise TypeError(UNKNOWN)
        return self._length


def as_dataset(begin: Callable[[], Iterator[Any]], spec: Any, length: int | None) -> tf.data.Dataset:
    """Returns a dataset of which each iteration takes the batches of `begin()`, of `spec`, when they are asked for.

    `length` is the number of batches of every iteration, or None if it is not known or varies. An error of `begin`
    or its batches is TensorFlow's UnknownError, with the same text.
    """
    dataset = tf.data.Dataset.from_generator(begin, output_signature=spec)
    if length is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    # Keras drops iterators in cycles of references. Python's collector may find one in any thread, also in a thread of
    # that very iterator's, e.g. of a prefetch, which would then wait for its own end: so the dataset has no threads.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = options.autotune.enabled = False
    return close_at_exit(dataset.with_options(options))


class Epochs:
    """The epochs of a rank's training batches, or passes over test data: their lengths, and how far a Loader is.

    It has no reference to the Loader, so that one that is dropped ends at once: iterators get it when they are made.
    """

    def __init__(self, data: Split, progress: Progress, steps: int | None = None) -> None:
        """Begins before the first batch; an epoch has `steps` steps, or lets all ranks see each crop once."""
        self.data, self.progress, self._steps = data, progress, steps
        self.lock = threading.RLock()
        self.moves = 0  # times that the pipeline went elsewhere: by a pass, close or load_state_dict
        self.begun = 0  # passes over test data begun
        self.first = 0  # step at which the pass began
        self.ended = False  # whether the last batch of the pass was handed out
        self.filled: int | None = None  # batches of a test pass that is filled up; None if it is not

    @property
    def step(self) -> int:
        """Batches handed out since the stream began."""
        return self.progress.given

    @property
    def used(self) -> int:
        """Batches that the state counts."""
        return self.progress.used.step

    @property
    def within(self) -> bool:
        """Whether a pass over test data has begun, of which the state counts a part."""
        return self.ended or self.used != self.first

    @cached_property
    def count(self) -> CropCount:
        """Number of crops in an epoch over all ranks; every rank must ask."""
        return count_crops(self.data)

    @cached_property
    def schedule(self) -> Schedule:
        """Steps of the epochs, and the phases in which crops and batches have one size; every rank must ask."""
        return self.schedule_of(self.data.world.size)

    def schedule_of(self, size: int) -> Schedule:
        """Returns the schedule for `size` ranks."""
        return Schedule.of(self.data.config, 0 if self._steps else self.count.crops, size, self._steps)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the training epoch of the next batch."""
        return self.schedule.phase_after(self.step)[0].steps

    @property
    def pass_length(self) -> int | None:
        """Number of this rank's batches in a pass over test data, or None if only the XMLs tell."""
        if self.filled is not None:
            return self.filled
        crops = own_crops(self.data)
        return None if crops is None else -(-crops // self.data.config.batch_size)

    @property
    def rest_length(self) -> int | None:
        """Number of batches of the next pass over test data, of its rest if a state was loaded, or None."""
        length = self.pass_length
        return length if length is None or self.within else length - self.first

    def epoch(self, number: int | None, batches: Iterator[Any]) -> Pass:
        """Returns the batches of training epoch `number` that are still to come; by default the open one.

        The first one raises ValueError if the epoch is over, or an earlier one is not.
        """
        number = self.schedule.locate(self.step)[0] if number is None else number
        first, end = map(self.schedule.first_step, (number, number + 1))
        start: int | None = None

        def take() -> Any:
            nonlocal start
            if start is None and not first <= self.step <= end:
                raise ValueError(f"epoch {number} begins at step {first}, and {self.step} steps are done")
            start = self.step
            # Another thread may have taken the epoch's last batch.
            if self.step >= end:
                raise StopIteration
            return next(batches)

        return Pass(take, self.lock, end - min(max(first, self.step), end))

    def begin_pass(self, batches: Iterator[Any]) -> Pass:
        """Returns a pass over test data, as `for` begins one: it ends by an error once another pass has begun."""
        self.begun += 1
        number = self.begun

        def take() -> Any:
            if self.begun != number:
                raise RuntimeError(
                    "another pass over the test data of this Loader has begun, and it has one at a time: for loops "
                    "within each other, zip and threads that need a pass each need a Loader each, e.g. "
                    "tfpipe.Loader(config, 'test', data=loader.data); threads that share a pass take the batches of "
                    "one iterator, batches = iter(loader)"
                )
            return next(batches)

        return Pass(take, self.lock)

    def this_pass(self, begin: Callable[[], Iterator[Any]], length: int | None = None) -> Pass:
        """Returns the batches of `begin()`, which the first one calls; they end with `close` and `load_state_dict`."""
        batches: Iterator[Any] | None = None
        began = 0, 0

        def take() -> Any:
            nonlocal batches, began
            if batches is None:
                batches = begin()
                began = self.moves, self.begun
            if self.moves != began[0] and self.begun == began[1]:
                raise StopIteration
            return next(batches)

        return Pass(take, self.lock, length)

    def dataset(self, begin: Callable[[], Iterator[Any]], spec: Any) -> tf.data.Dataset:
        """Returns a dataset of which each iteration is an epoch, or a pass, of the batches of `begin()`, of `spec`."""
        if not self.data.training:
            exact = self.data.config.on_error == "raise" and not self.step
            return as_dataset(lambda: self.this_pass(begin), spec, self.rest_length if exact else None)
        steps = {phase.steps for phase in self.schedule.phases}
        length = steps.pop() if len(steps) == 1 else None
        return as_dataset(lambda: islice(self.this_pass(begin), self.steps_per_epoch), spec, length)
