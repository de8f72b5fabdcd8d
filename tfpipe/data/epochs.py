"""A Loader's epochs and passes: their lengths, iterators over them, and a tf.data.Dataset of one an iteration."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import tensorflow as tf

from tfpipe.data.crop_counts import CropCount, count_crops, own_crops
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.runtime.shutdown import close_at_exit
from tfpipe.data.split import Split
from tfpipe.distributed import World


class Pass(Iterator[Any]):
    """The batches of an epoch or a pass that are still to come; `len` is their number when it was made."""

    def __init__(self, batches: Iterator[Any], length: int | None) -> None:
        """Wraps `batches`, of which there are `length`; None: only reading the XMLs would tell."""
        self._batches, self._length = batches, length

    def __next__(self) -> Any:
        """Returns the next batch, as the Loader does."""
        return next(self._batches)

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if it is not known."""
        if self._length is None:
            raise TypeError(
                "the number of batches is not known before the XMLs are read: an index (tfpipe index) has it"
            )
        return self._length


def as_dataset(begin: Callable[[], Iterator[Any]], spec: Any, length: int | None) -> tf.data.Dataset:
    """Returns a dataset of which each iteration takes the batches of `begin()`, of `spec`, when they are asked for.

    `length` is the number of batches of every iteration; None: it is not known, or not always the same. An error of
    `begin` or its batches is TensorFlow's UnknownError, with the same text.
    """
    dataset = tf.data.Dataset.from_generator(begin, output_signature=spec)
    if length is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    # Keras drops iterators in cycles of references. Python's collector may find one in any thread, also in a thread of
    # that very iterator's, e.g. of a prefetch, which would then wait for its own end: so the dataset has no threads.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = options.autotune.enabled = False
    return close_at_exit(dataset.with_options(options))


class Epochs(Iterator[Any]):
    """The base of Loader that divides a rank's batches into the epochs of training, and passes over test data."""

    data: Split
    split: str
    world: World
    _lock: threading.RLock
    _epoch_steps: int | None  # steps of an epoch that the user wants; None: by the crops
    _passes: int  # passes begun
    _first: int  # step at which the pass began
    _ended: bool  # whether the last batch of the pass was handed out

    @property
    @abstractmethod
    def step(self) -> int:
        """Batches handed out since the stream began."""

    @property
    @abstractmethod
    def used(self) -> int:
        """Batches that the state counts."""

    @abstractmethod
    def close(self) -> None:
        """Ends the pipeline, and goes to the state."""

    @abstractmethod
    def _spec(self) -> Any:
        """Returns the types and shapes of what `next` returns; builds the pipeline."""

    def __len__(self) -> int:
        """Returns the number of this rank's batches in a test pass; of training data `steps_per_epoch`, with its rules.

        Training data are endless for `for` and `next`; Keras, Lightning and progress bars take their length for an
        epoch's. Raises TypeError if only reading the XMLs would tell how many batches a test pass has.
        """
        if self.split == "train":
            return self.steps_per_epoch
        crops = own_crops(self.data)
        if crops is None:
            raise TypeError("the number of test batches is not known before the XMLs are read; an index has it")
        return -(-crops // self.data.config.batch_size)

    @cached_property
    def count(self) -> CropCount:
        """Number of crops in an epoch over all ranks; every rank must ask."""
        return count_crops(self.data)

    @cached_property
    def schedule(self) -> Schedule:
        """Steps of the epochs, and the phases in which crops and batches have one size; every rank must ask."""
        return self._schedule_of(self.world.size)

    def _schedule_of(self, size: int) -> Schedule:
        return Schedule.of(self.data.config, 0 if self._epoch_steps else self.count.crops, size, self._epoch_steps)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in which all ranks together see at least an epoch's crops; every rank must ask.

        If `data.batch_size` changes with the epochs, it is that of the epoch which the next batch is of.
        """
        return self.schedule.phase_after(self.step)[0].steps

    def epoch(self, number: int | None = None) -> Pass:
        """Returns the batches of epoch `number`, from 0, that are still to come: after a resume, the rest of it.

        None is the epoch of the next batch. An epoch of test data is a pass, as with `for`. `len` is the number of
        batches, for a progress bar. Every rank must call it. The first batch raises ValueError if a training epoch is
        over, or an earlier one is not.
        """
        if self.split != "train":
            return Pass(self.this_pass(), self._pass_length())
        number = self.schedule.locate(self.step)[0] if number is None else number
        first, end = map(self.schedule.first_step, (number, number + 1))
        return Pass(self._epoch(number), end - min(max(first, self.step), end))

    def _epoch(self, number: int) -> Iterator[Any]:
        first, end = map(self.schedule.first_step, (number, number + 1))
        if not first <= self.step <= end:
            raise ValueError(f"epoch {number} begins at step {first}, and {self.step} steps are done")
        while self.step < end:
            yield next(self)

    def _pass_length(self) -> int | None:
        """Returns the number of batches of the next test pass, of its rest if a state was loaded; None: not known."""
        try:
            return len(self) - (0 if self._ended or self.used != self._first else self._first)
        except TypeError:
            return None

    def dataset(self) -> tf.data.Dataset:
        """Returns a tf.data.Dataset, e.g. for Keras' fit on each of its backends; builds the pipeline.

        An iteration over training data takes the `steps_per_epoch` batches after those that the state counts, one over
        test data is a whole pass; fit takes one an epoch, and no batch beyond. The number of batches is the dataset's
        cardinality, unless only the XMLs tell, `data.on_error` leaves samples out, or epochs have several lengths. Load
        a state before you call this. If a fit is stopped within an epoch, the state counts the batch or two that it has
        taken ahead, unless tfpipe.keras.Commit counts. An error of the Loader is TensorFlow's UnknownError, whose text
        names the file; Ctrl-C ends the wait for a batch when that comes.
        """
        spec = self._spec()
        if self.split != "train":
            exact = self.data.config.on_error == "raise" and not self.step
            return as_dataset(self.this_pass, spec, self._pass_length() if exact else None)
        steps = {phase.steps for phase in self.schedule.phases}
        begin = lambda: islice(self.this_pass(), self.steps_per_epoch)  # noqa: E731
        return as_dataset(begin, spec, steps.pop() if len(steps) == 1 else None)

    def this_pass(self) -> Iterator[Any]:
        """Yields the batches from those on that the state does not count, or, as `for` does, a pass over test data.

        It ends with the test data, and when another pass, `close` or `load_state_dict` begins: a thread that still
        iterates then gets none of the batches of the next pass.
        """
        with self._lock:
            if self.step != self.used:
                self.close()
            iter(self)
            number = self._passes
        while True:
            with self._lock:
                if self._passes != number:
                    return
                try:
                    batch = next(self)
                except StopIteration:
                    return
            yield batch
