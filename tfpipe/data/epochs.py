"""A Loader's epochs and passes: their lengths, iterators over them, and a tf.data.Dataset of one an iteration."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf

from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import CropCount, count_crops, own_crops
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.runtime.shutdown import close_at_exit
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


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


class OnePass(Iterator[Any]):
    """A pass over test data, as `for` begins one: it ends by an error once another pass has begun.

    Threads may share it: each batch goes to one of them.
    """

    def __init__(self, loader: "Epochs", number: int) -> None:
        """Takes the batches of `loader` while pass `number` is the one that began last."""
        self._loader, self._number, self._over = loader, number, False

    def __next__(self) -> Any:
        """Returns the next batch, as the Loader does.

        Raises RuntimeError if another pass has begun: batches would be missing in this one.
        """
        with self._loader._lock:
            if self._over:
                raise StopIteration
            if self._loader._begun != self._number:
                raise RuntimeError(
                    "another pass over the test data of this Loader has begun, and it has one at a time: for loops "
                    "within each other, zip and threads that need a pass each need a Loader each, e.g. "
                    "tfpipe.Loader(config, 'test', catalog=loader.data); threads that share a pass take the batches of "
                    "one iterator, batches = iter(loader)"
                )
            try:
                return next(self._loader)
            except StopIteration:
                self._over = True
                raise


class Epochs(Iterator[Any]):
    """The base of Loader that divides a rank's batches into the epochs of training, and passes over test data."""

    held: bool  # whether the process ends: see hold_at_exit
    data: Split
    split: str
    world: World
    _lock: threading.RLock
    _extras: tuple[str, ...] = ()  # arguments that add to the data of a batch
    _epoch_steps: int | None  # steps of an epoch that the user wants; None: by the crops
    _passes: int  # times that the pipeline went elsewhere: by a pass, close or load_state_dict
    _begun: int  # passes over test data begun
    _first: int  # step at which the pass began
    _ended: bool  # whether the last batch of the pass was handed out

    @property
    def catalog(self) -> Catalog:
        """Catalog of the images: paths, labels, class names, boxes."""
        return self.data.catalog

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return list(self.data.classes)

    def __deepcopy__(self, memo: Any = None) -> NoReturn:
        raise TypeError(
            f"a {type(self).__module__}.{type(self).__name__} has a pipeline and threads, and cannot be pickled or "
            "copied: make another one of the same config, loader.config, in this process with catalog=loader.data, and "
            "take the state of this one to it by state_dict() and load_state_dict()"
        )

    __copy__ = __deepcopy__

    def __reduce__(self) -> NoReturn:
        self.__deepcopy__()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        while True:
            # Another thread that takes the epoch's last batch in between would make this one take the next epoch's.
            with self._lock:
                if self.step >= end:
                    return
                batch = next(self)
            yield batch

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

        Raises ConfigError if the Loader was to add positions or times, which Keras would take for labels or weights.
        """
        if self._extras:
            raise ConfigError(
                f"dataset(): the Loader was made with {self._extras[0]}=True, and Keras would take what that adds to a "
                "batch for labels or sample weights: leave it out, or take the batches by loader.epoch()"
            )
        spec = self._spec()
        if self.split != "train":
            exact = self.data.config.on_error == "raise" and not self.step
            return as_dataset(self.this_pass, spec, self._pass_length() if exact else None)
        steps = {phase.steps for phase in self.schedule.phases}
        begin = lambda: islice(self.this_pass(), self.steps_per_epoch)  # noqa: E731
        return as_dataset(begin, spec, steps.pop() if len(steps) == 1 else None)

    def this_pass(self) -> Iterator[Any]:
        """Yields the batches from those on that the state does not count, or, as `for` does, a pass over test data.

        It ends with the test data, and with `close` or `load_state_dict`: a thread that still iterates then gets none
        of the batches that follow. The first batch after another pass over test data has begun raises RuntimeError.
        """
        with self._lock:
            if self.step != self.used:
                self.close()
            batches, number, begun = iter(self), self._passes, self._begun
        while True:
            with self._lock:
                if self._passes != number and self._begun == begun:
                    return
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch
