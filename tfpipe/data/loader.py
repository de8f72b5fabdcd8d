"""The Loader: a rank's batches for a loop of the user's own, with exact state, named failures and a time limit."""

import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfpipe.config.by_epoch import by_epoch
from tfpipe.data.batch import Batch, with_extras
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.contract import check_ranks, contract_differences, data_contract
from tfpipe.data.crop_counts import CropCount, check_share, crops_left, crops_of_a_pass, crops_of_a_sample
from tfpipe.data.delivery.delivery import UNKNOWN, BatchTimeoutError, Bounds, Delivery, HandOut, Moves, Pass, epochs
from tfpipe.data.delivery.lengths import Lengths
from tfpipe.data.delivery.opening import Opener, as_dataset
from tfpipe.data.delivery.taker import ON_DEVICE, on_device
from tfpipe.data.failures.missing import DroppedLog, DroppedSample
from tfpipe.data.failures.stalled import describe, pending_files, unreadable_within
from tfpipe.data.order.progress import Position, Progress
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.order.state import LoaderState
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import build_batches, stage_names
from tfpipe.data.runtime.marks import marking
from tfpipe.data.runtime.meter import Meter
from tfpipe.data.runtime.shutdown import hold_at_exit
from tfpipe.data.sources.described import check_numbers, config_of_data
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted

if TYPE_CHECKING:
    from typing_extensions import Self


class Loader(HandOut):
    """An iterator over the batches of a rank: endless for training, one exact pass for each `for` over the test data.

        with tfpipe.Loader(config) as loader:
            for images, labels in loader.epoch(0):
                ...

    Its state is that of the last batch handed out, not of prefetched ones; once `commit` is called, that of the last
    batch committed. Threads may share it, or `iter(loader)` of test data: each batch goes to one of them.
    """

    def __init__(
        self,
        config_or_data: Any,
        split: str = "train",
        world: World | None = None,
        device: str | Callable[[tf.Tensor], Any] | None = None,
        *,
        timeout_s: float | None = None,
        positions: bool = False,
        ready: bool = False,
        named: bool = False,
        data: Split | None = None,
        gather: Callable[[Any], list[Any]] | None = None,
        marks: bool = False,
        max_bad_fraction: float | None = None,
        steps_per_epoch: int | None = None,
        **keys: Any,
    ) -> None:
        """Loads the catalog; `start`, or the first batch taken, builds the pipeline.

        Args:
            config_or_data: config, of which the `data` section is used; or any data that tfpipe.load takes.
            split: "train" or "test".
            world: this process's rank and the number of ranks; by default the launcher's, by Horovod.
            device: TensorFlow's device, e.g. "GPU:0", that a thread puts the batches on, two ahead; or the function by
                which it puts each tensor there.
            timeout_s: seconds without a batch that are an error, or math.inf; by default `data.stall_timeout_s`.
            positions: whether to add the crops' positions to each batch, int64 [batch, 2].
            ready: whether to add the time at which a batch was ready, float64 [], in seconds since 1970.
            named: whether batches are `Batch`, with positions and ready by name, instead of tuples.
            data: the split if already loaded, by stages.load_split.
            gather: function that returns every rank's value by rank; by default world.gather.
            marks: whether to record, while a trace is recorded, when each sample is read and cropped.
            max_bad_fraction: share of all ranks' samples that this rank may leave out, and all of them where they meet,
                in `state_dict`; by default `data.max_bad_fraction`.
            steps_per_epoch: batches of a training epoch; by default those in which all ranks see each crop once.
            **keys: of data, keys of the section `data`, as tfpipe.load takes them; a config has its own.

        Raises:
            ConfigError: a key is unknown, a filelist, a label or an annotation folder cannot be used, this rank would
                get no crop, or the ranks that are connected differ in the settings or the data.
            ValueError: `timeout_s`, `max_bad_fraction` or `steps_per_epoch` is a number that makes no sense.
        """
        check_numbers(timeout_s=timeout_s, max_bad_fraction=max_bad_fraction, steps_per_epoch=steps_per_epoch)
        options = (*inspect.signature(type(self)).parameters, *inspect.signature(Loader).parameters)
        self.config, source = config_of_data(config_or_data, split, keys, options)
        self.split, self.world = split, (world := world or World.detect())
        settings = self.config.data
        self.data = load_split(settings, split, world, source) if data is None else data.adapt(settings, world, split)
        if self.data.training:
            check_share(self.data)
        self._gather = gather or world.gather
        self._compared = world.is_connected
        if world.is_connected and data is not None:
            self._compare_ranks()
        self._positions, self._ready, self._named = positions, ready, named
        self._lengths = Lengths(self.data, steps_per_epoch)
        build = marking()(build_batches) if marks else build_batches
        limit_s = timeout_s or settings.stall_timeout_s or math.inf
        self._opener = Opener(self.config, partial(build, with_ready=ready), self._lengths, limit_s)
        self._progress = Progress(self._opener.start, world.rank)
        dropped = DroppedLog(self.data, settings.max_bad_fraction if max_bad_fraction is None else max_bad_fraction)
        self.meter = Meter()
        self._delivery = Delivery(self._opener, self._progress, dropped, self.meter)
        self._lock = self._delivery.lock
        if device is not None:
            self._opener.prepare, self._opener.ahead = lambda *_: on_device(device), ON_DEVICE
        hold_at_exit(self._delivery)

    @property
    def catalog(self) -> Catalog:
        """Catalog of the images: paths, labels, class names, boxes."""
        return self.data.catalog

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return list(self.data.classes)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass over test data, or continues that of a state just loaded; training data continue.

        A pass over test data that began before raises RuntimeError when its next batch is taken.
        """
        if self.split == "train":
            return self
        began = self._delivery.begin_pass()
        return self._pass(Bounds(lambda: began))

    def _take(self, moves: Moves) -> Any:
        try:
            with self._lock:
                return self._delivery.take(self._finish, moves)
        except BatchTimeoutError:
            raise TfpipeError(
                f"rank {self.world.rank}: no batch within {self._opener.timeout_s:g} s: {self.waits_for()}; "
                "timeout_s or data.stall_timeout_s is how long to wait"
            ) from None

    def __len__(self) -> int:
        """Returns the number of this rank's batches in a test pass; of training data `steps_per_epoch`, with its rules.

        Training data are endless for `for` and `next`; Keras, Lightning and progress bars take their length for an
        epoch's. Raises TypeError if only reading the XMLs would tell how many batches a test pass has.
        """
        if self.split == "train":
            return self.steps_per_epoch
        if (length := self._lengths.rest_of_pass(self._progress.start)) is None:
            raise TypeError(UNKNOWN)
        return length

    def epoch(self, number: int | None = None) -> Pass:
        """Returns the batches of epoch `number`, from 0, that are still to come: after a resume, the rest of it.

        None is the epoch of the next batch. An epoch of test data is a pass, as with `for`. `len` is the number of
        batches. Every rank must call it. The first batch raises ValueError unless a training epoch is the present one.
        """
        if self.split != "train":
            return self._pass(Bounds(self._begin, self._next_pass, ends_with_moves=True))
        number = self.schedule.locate(self.step)[0] if number is None else number
        first, end = map(self.schedule.first_step, (number, number + 1))

        def begin() -> Position:
            if not first <= self.step <= end:
                raise ValueError(f"epoch {number} begins at step {first}, and done are {counted(self.step, 'step')}")
            return self._progress.at

        return self._pass(Bounds(begin, end - min(max(first, self.step), end), end))

    def this_pass(self) -> Pass:
        """Returns the batches from those on that the state does not count, or, as `for` does, a pass over test data.

        It ends with the test data, and with `close` or `load_state_dict`: a thread that still iterates then gets none
        of the batches that follow. The first batch after another pass over test data has begun raises RuntimeError.
        """
        return self._pass(Bounds(self._begin, ends_with_moves=True))

    def _pass(self, bounds: Bounds) -> Pass:
        return Pass(self._delivery, self._take, bounds)

    @property
    def _next_pass(self) -> int | None:
        """Number of batches of the next pass over test data, of its rest if a state was loaded, or None."""
        at = self._progress.at
        return self._lengths.rest_of_pass(at.stream if at.is_fresh else self._progress.start)

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
        for name in ("ready", "positions", "named"):
            if getattr(self, f"_{name}"):
                raise ConfigError(
                    f"dataset(): the Loader was made with {name}=True, and Keras would take what that adds to a batch "
                    "for labels or sample weights: leave it out, or take the batches by loader.epoch()"
                )
        with self._lock:
            spec = self._finish(self._opener.element_spec(self._delivery.wait_for_batches()))
        if self.split == "train":
            steps = {phase.steps for phase in self.schedule.phases}
            length = steps.pop() if len(steps) == 1 else None
            passes = epochs(self._delivery, self._take, self._begin, lambda: self.steps_per_epoch)
            return as_dataset(passes, spec, length)
        exact = self.config.data.on_error == "raise" and self._progress.at.stream is self._progress.start
        return as_dataset(self.this_pass, spec, self._next_pass if exact else None)

    def _begin(self) -> Position:
        """Goes to the state, and begins a pass over test data, or continues; returns the position."""
        if self.step != self.used:
            self.close()
        return self._progress.at if self.split == "train" else self._delivery.begin_pass()

    def _finish(self, batch: Batch) -> Any:
        """Returns a batch as its user gets it."""
        if self._named:
            return batch
        extras = [batch.positions] if self._positions else []
        return with_extras(batch.data, *extras, *([batch.ready] if self._ready else []))

    @property
    def step(self) -> int:
        """Batches handed out since the stream began; restored by `load_state_dict`."""
        return self._progress.at.given.step

    @property
    def used(self) -> int:
        """Batches that the state counts as used: those handed out or, once `commit` was called, those committed."""
        return self._progress.at.used.step

    @property
    def count(self) -> CropCount:
        """Number of crops in an epoch over all ranks; every rank must ask."""
        return self._lengths.count

    @property
    def schedule(self) -> Schedule:
        """Steps of the epochs, and the phases in which crops and batches have one size; every rank must ask."""
        return self._lengths.schedule

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in which all ranks together see at least an epoch's crops; every rank must ask.

        If `data.batch_size` changes with the epochs, it is that of the epoch which the next batch is of.
        """
        return self.schedule.phase_after(self.step)[0].steps

    def commit(self, step: int | None = None) -> None:
        """Counts the batches up to number `step`, or all handed out, as used: from now on the state is that of these.

        Raises ValueError if batch `step` was not handed out, or before the first commit is not among the last 100.
        """
        with self._lock:
            self._progress.commit(step)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data for JSON, the same on every rank; every rank must call it.

        Raises ConfigError if the ranks differ in the settings or the data, or if nothing connects them, and TfpipeError
        if they have left out too many samples together.
        """
        if not self._compared:
            self._compare_ranks()
        rank, dropped = self.world.rank, self._delivery.dropped
        with self._lock:
            at, rest = self._progress.at, self.rest()
            ended = self.split != "train" and (at.is_over or crops_left(self.data, rest) == 0)
            dropped.find_dropped()
            counts = [*dropped.counts.items()]
        ranks = self._gather((*rest.cursors[rank], at.used.step, at.used.crops, ended, counts))
        if len(ranks) != self.world.size:
            raise ConfigError(f"rank {rank}: {self.world} reaches no other rank: give the Loader a `gather`")
        dropped.check([dict(pairs) for *_, pairs in ranks])
        return LoaderState(
            self.split,
            at.stream.at([Cursor(position, crop) for position, crop, *_ in ranks]),
            by_epoch(self.data.config.batch_size),
            tuple(step for _, _, step, *_ in ranks),
            at.crops_before + sum(crops for _, _, _, crops, *_ in ranks),
            all(ended for *_, ended, _ in ranks),
            data_contract(self.data),
        ).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a state, of any number of ranks, with the same batch size per rank or over all ranks.

        The state of a test pass that is over leads to the beginning of the next one.

        Raises ConfigError if the state is damaged, or is of other data, of another batch size or, with `data.scope`
        "shard", of another number of ranks.
        """
        loaded, data, size = LoaderState.from_dict(state), self.data.config, self.world.size
        loaded.check(self.split, size, data, contract_differences(dict(loaded.contract), data_contract(self.data)))
        loaded.check_counts(*crops_of_a_sample(self.data), crops_of_a_pass(self.data), has_phases=data.has_phases)
        if loaded.ended:
            self.restart()
            return
        step = loaded.steps(self.world.rank, size, data, self._lengths.schedule_of)
        self._reschedule(step)
        self._delivery.seek(loaded.stream.over(size), step, loaded.crops)

    def rest(self) -> Stream:
        """Returns the stream after the batch that the state is of; the other ranks are where they were at its start."""
        return self._progress.rest

    def restart(self, stream: Stream | None = None, step: int = 0, done: tuple[int, int] | None = None) -> None:
        """Ends the pipeline, and goes to the beginning of `stream`, or of all data; before it `step` steps are done.

        `done`: the epoch there and its steps done, if `step` does not say that, since earlier epochs had other numbers.
        """
        self._reschedule(step, done)
        self._delivery.seek(stream or self._progress.start, step)

    def _reschedule(self, step: int, done: tuple[int, int] | None = None) -> None:
        if self.data.config.has_phases:
            self._lengths.schedule = self.schedule.at(step, done)

    def start(self) -> None:
        """Begins to read and decode, so that the next batches come sooner; the state stays the same.

        Returns at once: call it before work that takes time, e.g. when `load_state_dict` is done and the weights of a
        model are still to be loaded. Without it, the first batch taken begins.
        """
        with self._lock:
            if not self._progress.at.ended:
                self._delivery.open_taker()

    def waits_for(self) -> str:
        """Returns text that names the files of the next batches: those that cannot be read, or else a few of them."""
        paths = pending_files(self.data, self._progress.ahead)
        return describe(paths, unreadable_within(paths))

    def dropped(self) -> list[DroppedSample]:
        """Returns the samples that `data.on_error` "skip" has left out on this rank since the last call, and why.

        Counts the batches used, as the state does: once `commit` is called, up to the last batch committed.
        """
        with self._lock:
            self._delivery.confirm_dropped()
            return self._delivery.dropped.pop_confirmed()

    def stats(self) -> dict[str, Any]:
        """Returns this rank's waits and rates, with `ready` also delays, and each stage's work: see Meter.stats.

        Besides, `images` are the crops handed out and `left_out` the samples that `data.on_error` "skip" has left out,
        as far as they were looked for (every 1,000 batches, and by `dropped`), since the stream began.
        """
        data, taker = self.data.config, self._delivery.taker
        # The schedule may take a collective, and a thread of one rank may ask.
        schedule = vars(self._lengths).get("schedule")
        (_, size), *_ = by_epoch(data.batch_size)
        size = schedule.phase_after(self.step)[0].batch_size if schedule else size
        counts = {"images": self._progress.at.given.crops, "left_out": self._delivery.dropped.count}
        iterator = None if taker is None else taker.batches.iterator
        return {**self.meter.stats(size, iterator, stage_names(self.data)), **counts}

    def close(self) -> None:
        """Ends the pipeline. The state stays: training data continue from it, test data with another pass."""
        self._delivery.go_back()

    @property
    def iterator(self) -> Any:
        """The pipeline's own iterator, for its statistics."""
        with self._lock:
            return self._delivery.wait_for_batches().iterator

    def _compare_ranks(self) -> None:
        """Checks that all ranks have the same settings and data; those of a `gather` meet in `state_dict` only."""
        check_ranks(self.data, self._gather)
        self._compared = True
