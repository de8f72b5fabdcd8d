"""The Loader: a rank's batches for a loop of the user's own, with exact state, named failures and a time limit."""

import math
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any

import tensorflow as tf

from tfpipe.config.by_epoch import by_epoch
from tfpipe.data.batch import Batch, joined
from tfpipe.data.contract import breaches, check_ranks, data_contract
from tfpipe.data.crop_counts import check_share, crops_left, crops_of_a_pass, crops_of_a_sample
from tfpipe.data.epochs import Epochs, OnePass
from tfpipe.data.failures.batches import Batches, PhasedBatches
from tfpipe.data.failures.missing import Dropped, DroppedLog, DroppedSample
from tfpipe.data.failures.stalled import Taker, describe, on_device, pending_files, unreadable_within
from tfpipe.data.order.progress import Progress
from tfpipe.data.order.state import LoaderState
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import build_batches, stage_names
from tfpipe.data.runtime.marks import marked
from tfpipe.data.runtime.meter import Meter
from tfpipe.data.runtime.shutdown import END_S, hold_at_exit, silent_at_exit
from tfpipe.data.sources.described import described
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError


class Loader(Epochs):
    """An iterator over the batches of a rank: endless for training, one exact pass for each `for` over the test data.

        with tfpipe.Loader(config) as loader:
            for images, labels in loader.epoch(0):
                ...

    Its state is that of the last batch handed out: what is prefetched does not count as used. Once `commit` is called,
    it is that of the last batch committed. Several threads may share it, or `iter(loader)` of test data: each batch
    goes to one of them.
    """

    def __init__(
        self,
        data: Any,
        split: str = "train",
        world: World | None = None,
        device: str | None = None,
        *,
        timeout_s: float | None = None,
        positions: bool = False,
        ready: bool = False,
        named: bool = False,
        catalog: Split | None = None,
        gather: Callable[[Any], list[Any]] | None = None,
        marks: bool = False,
        max_bad_fraction: float | None = None,
        steps_per_epoch: int | None = None,
        **keys: Any,
    ) -> None:
        """Loads the catalog; `start`, or the first batch taken, builds the pipeline.

        Args:
            data: config, of which the `data` section is used; or any data that tfpipe.load takes.
            split: "train" or "test".
            world: this process's rank and the number of ranks; None: as launched, which Horovod connects.
            device: TensorFlow's device, e.g. "GPU:0", that a thread puts the batches on, two ahead.
            timeout_s: seconds without a batch that are an error, above 0; math.inf: none are; None:
                `data.stall_timeout_s`.
            positions: whether to add the crops' positions to each batch, int64 [batch, 2].
            ready: whether to add the time at which a batch was ready, float64 [], in seconds since 1970.
            named: whether batches are `Batch`, with positions and ready by name, instead of tuples.
            catalog: the split if already loaded, by stages.load_split.
            gather: function that returns every rank's value by rank, e.g. by torch.distributed; None: world.gather.
            marks: whether to record, while a trace is recorded, when each sample is read and cropped.
            max_bad_fraction: share of an epoch's samples that this rank may leave out; None: `data.max_bad_fraction`.
            steps_per_epoch: batches of a training epoch; None: as many as it takes all ranks to see each crop once.
            **keys: if `data` is no config, keys of the section `data`, as tfpipe.load takes them.

        Raises:
            ConfigError: a key is unknown, a filelist, a label or an annotation folder cannot be used, this rank would
                get no crop, or the ranks that are connected differ in the settings or the data.
            ValueError: `timeout_s` is no time.
        """
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0 s, or math.inf for no limit; received {timeout_s}")
        config, source = described(data, split, keys, self)
        self.config, self.split, self.world = config, split, (world := world or World.detect())
        loaded = (
            load_split(config.data, split, world, source) if catalog is None else catalog.adapted(config.data, world)
        )
        self.data: Split = loaded
        if loaded.training:
            check_share(loaded)
        self._gather, self._put_on = gather or world.gather, device
        self._compared = world.connected
        if world.connected and catalog is not None:
            self._compare_ranks()
        self._positions, self._ready, self._named = positions, ready, named
        extras = ("ready", ready), ("positions", positions), ("named", named)
        self._extras = tuple(name for name, wanted in extras if wanted)
        self._build_batches = partial(marked(build_batches) if marks else build_batches, with_ready=ready)
        self._timeout_s = timeout_s or config.data.stall_timeout_s or math.inf
        self._start = Stream.start(world.size)
        self._progress, self._crops_before = Progress(self._start, world.rank), 0  # of the loaded state's ranks
        self._lock, self.meter = threading.RLock(), Meter()
        self._batches: Batches | None = None
        self._taker: Taker | None = None
        self._finder: Dropped | None = None
        most = config.data.max_bad_fraction if max_bad_fraction is None else max_bad_fraction
        self._dropped = DroppedLog(loaded, most)
        hold_at_exit(self)
        self._passes, self._begun, self._first, self._ended, self._epoch_steps = 0, 0, 0, False, steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass over test data, or continues that of a state just loaded; training data continue.

        A pass over test data that began before raises RuntimeError when its next batch is taken.
        """
        if self.split == "train":
            return self
        with self._lock:
            if self._ended or self.used != self._first:
                self.restart()
            self._begun += 1
            return OnePass(self, self._begun)

    def __next__(self) -> Any:
        """Returns the next batch: images, labels and, if asked for, positions and the time, as build_dataset does.

        Raises TfpipeError if a file cannot be used, which the message names, if too many were left out, or no batch
        came in time.
        """
        with silent_at_exit(self), self._lock:
            return self._finished(self._take())

    def _take(self) -> Batch:
        if self._ended:
            raise StopIteration
        batches = self._opened()
        take = partial(next, batches) if self._taker is None else self._taker.take
        try:
            batch = self.meter.take(take, lambda batch: float(batch.ready) if self._ready else None)
        except TimeoutError:
            raise TfpipeError(
                f"rank {self.world.rank}: no batch within {self._timeout_s:g} s: {self.waits_for()}; timeout_s or "
                "data.stall_timeout_s is how long to wait"
            ) from None
        except StopIteration:
            self._look(end=True)
            self._release()
            self._ended = True
            self._dropped.check()
            raise
        self._progress.add(batch.positions)
        if self._finder is not None:
            self._dropped.add(self._finder.add(batch.positions.numpy()))
            self._dropped.check()
        return batch

    def _spec(self) -> Any:
        with self._lock:
            return self._finished(self._opened().element_spec)

    def _finished(self, batch: Batch) -> Any:
        """Returns a batch as its user gets it."""
        if self._named:
            return batch
        extras = [batch.positions] if self._positions else []
        return joined(batch.data, *extras, *([batch.ready] if self._ready else []))

    @property
    def step(self) -> int:
        """Batches handed out since the stream began; restored by `load_state_dict`."""
        return self._progress.given

    @property
    def used(self) -> int:
        """Batches that the state counts as used: those handed out or, once `commit` was called, those committed."""
        return self._progress.used.step

    def commit(self, step: int | None = None) -> None:
        """Counts the batches up to number `step` as used, None: all handed out; the state is of these from now on.

        Raises ValueError if batch `step` was not handed out, or is no longer remembered: before the first commit the
        last 100 are.
        """
        with self._lock:
            self._progress.commit(step)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data for JSON, the same on every rank; every rank must call it.

        Raises ConfigError if the ranks differ in the settings or the data, or if they are not connected, and there is
        no `gather`.
        """
        if not self._compared:
            self._compare_ranks()
        rank, stream = self.world.rank, self._progress.stream
        with self._lock:
            used, rest = self._progress.used, self.rest()
            ended = self.split != "train" and (
                (self._ended and self.step == self.used) or crops_left(self.data, rest) == 0
            )
        ranks = self._gather((*rest.cursors[rank], used.step, used.crops, ended))
        if len(ranks) != self.world.size:
            raise ConfigError(f"rank {rank}: {self.world} reaches no other rank: give the Loader a `gather`")
        return LoaderState(
            self.split,
            stream.at([Cursor(position, crop) for position, crop, *_ in ranks]),
            by_epoch(self.data.config.batch_size),
            tuple(step for _, _, step, *_ in ranks),
            self._crops_before + sum(crops for *_, crops, _ in ranks),
            all(ended for *_, ended in ranks),
            data_contract(self.data),
        ).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a state, of any number of ranks, with the same batch size per rank or over all ranks.

        The state of a test pass that is over leads to the beginning of the next one.

        Raises ConfigError if the state is damaged, or is of other data, of another batch size or, with `data.scope`
        "shard", of another number of ranks.
        """
        loaded, data, size = LoaderState.from_dict(state), self.data.config, self.world.size
        loaded.check(self.split, size, data, breaches(dict(loaded.contract), data_contract(self.data)))
        loaded.check_counts(*crops_of_a_sample(self.data), crops_of_a_pass(self.data))
        if loaded.ended:
            self.restart()
            return
        step = loaded.steps(self.world.rank, size, data, self._schedule_of)
        with self._lock:
            self.restart(loaded.stream.over(size), step)
            self._crops_before = loaded.crops

    def rest(self) -> Stream:
        """Returns the stream after the batch that the state is of; the other ranks are where they were at its start."""
        return self._progress.rest()

    def restart(self, stream: Stream | None = None, step: int = 0, done: tuple[int, int] | None = None) -> None:
        """Ends the pipeline, and goes to the beginning of `stream`, None: all data; before it `step` steps are done.

        `done`: the epoch there and its steps done, if `step` does not say that, since earlier epochs had other numbers.
        """
        self._end()
        with self._lock:
            if self.data.config.phased:
                self.schedule = self.schedule.at(step, done)
            self._go_to(stream or self._start, step, 0)
            self._crops_before, self._first, self._ended = 0, step, False
            self._dropped.restart()

    def start(self) -> None:
        """Begins to read and decode, so that the next batches come sooner; the state stays the same.

        Returns at once: call it before work that takes time, e.g. when `load_state_dict` is done and the weights of a
        model are still to be loaded. Without it, the first batch taken begins.
        """
        with self._lock:
            if not self._ended:
                self._opened()

    def waits_for(self) -> str:
        """Returns text that names the files of the next batches: those that cannot be read, or else a few of them."""
        paths = pending_files(self.data, self._progress.ahead(), None)
        return describe(paths, unreadable_within(paths))

    def dropped(self) -> list[DroppedSample]:
        """Returns the samples that `data.on_error` "skip" has left out on this rank since the last call, and why.

        Counts the batches used, as the state does: once `commit` is called, up to the last batch committed.
        """
        with self._lock:
            self._look()
            self._settle()
            return self._dropped.take()

    def stats(self) -> dict[str, Any]:
        """Returns this rank's waits and rates, with `ready` also delays, and each stage's work: see Meter.stats.

        Besides, `images` are the crops handed out and `left_out` the samples that `data.on_error` "skip" has left out,
        as far as they were looked for (every 1,000 batches, and by `dropped`), since the stream began.
        """
        data, iterator = self.data.config, None if self._batches is None else self._batches.iterator
        size = self.schedule.phase_after(self.step)[0].batch_size if data.phased else data.batch_size
        counts = {"images": self._progress.crops, "left_out": self._dropped.count}
        return {**self.meter.stats(size, iterator, stage_names(self.data)), **counts}

    def close(self) -> None:
        """Ends the pipeline. The state stays: training data continue from it, test data with another pass."""
        self._end()
        with self._lock:
            # A pass whose last batches were handed out and not used has not ended.
            self._ended &= self.step == self.used
            self._go_to(self.rest(), self._progress.used.step, self._progress.used.crops)

    @property
    def iterator(self) -> Any:
        """The pipeline's own iterator, for its statistics."""
        with self._lock:
            return self._opened().iterator

    def hold(self) -> None:
        """Ends the pipeline as the process ends; threads that take batches, which are daemons, wait for that end."""
        self.held = True
        self._end()
        self._lock.acquire(timeout=END_S)
        if self._taker is not None:
            self._taker.close()

    def _end(self) -> None:
        """Ends another thread's wait for a batch, which would hold the lock until the batch is there."""
        if (batches := self._batches) is not None and not self._lock.acquire(blocking=False):
            batches.cancel()
        elif batches is not None:
            self._lock.release()

    def _go_to(self, stream: Stream, step: int, crops: int) -> None:
        self._look()
        self._settle()
        self._dropped.forget()
        self._release()
        self._progress.restart(stream, step, crops)
        self._passes += 1

    def _release(self) -> None:
        if self._taker is not None:
            self._taker.close()
        self._batches = self._taker = self._finder = None

    def _opened(self) -> Batches:
        if self._batches is None:
            data, stream = self.data.config, self._progress.stream
            if data.phased:
                build = partial(self._build_batches, split=self.split, world=self.world, catalog=self.data)
                self._batches = PhasedBatches(build, (self.config, self.schedule, self.step), self.data, stream)
            else:
                self._batches = Batches(self._build, self.data, stream)
            self._taker = self._taker_of(self._batches)
            self._finder = Dropped(self.data, stream) if data.on_error == "skip" else None
            self.meter.restart()
        return self._batches

    def _taker_of(self, batches: Batches) -> Taker | None:
        prepare, ahead = on_device(self._put_on)
        return Taker(batches, self._timeout_s, prepare, ahead) if ahead or self._timeout_s < math.inf else None

    @cached_property
    def _build(self) -> Callable[[Stream], tf.data.Dataset]:
        """Builds the dataset from a point of the stream on; that of a whole pass once, since test passes repeat it.

        It holds no reference to the loader: a thread has it, and ends when the loader is dropped.
        """
        start, build = self._start, partial(self._build_batches, self.config, self.split, self.world)
        build = partial(build, catalog=self.data)
        whole = cache(lambda: build(resume=start))
        return lambda rest: whole() if rest is start else build(resume=rest)

    def _compare_ranks(self) -> None:
        """Checks that all ranks have the same settings and data; those of a `gather` meet in `state_dict` only."""
        check_ranks(self.data, self._gather)
        self._compared = True

    def _look(self, end: bool = False) -> None:
        if self._finder is not None:
            self._dropped.add(self._finder.look(end=end))

    def _settle(self) -> None:
        over = self._ended and self.step == self.used
        self._dropped.settle(math.inf if over else self.rest().cursors[self.world.rank].position)


def load(data: Any, split: str = "train", **arguments: Any) -> Loader:
    """Returns a Loader of data that are described in one call, without a config.

        train, test = tfpipe.load("flowers", image_size=128), tfpipe.load("flowers", "test", image_size=128)
        model.fit(train.dataset(), epochs=5, validation_data=test.dataset(), shuffle=False)

    Args:
        data: a path, whose kind is recognised: a folder of class folders, or of train and val with such; a filelist
            (.txt); a table (.csv, .parquet, .arrow, .jsonl); COCO's instances .json; tar shards; packed data;
            TFRecords. Or data in memory: a pandas DataFrame, or another table of Arrow, with the columns `path` or
            `image` (bytes), `label` and perhaps `boxes`; a list of (path, label); a list of paths with `labels`; a
            Dataset or DatasetDict of Hugging Face. Relative paths in memory are relative to `images`, or to the current
            folder.
        split: "train": shuffled, augmented and endless. "test": one exact pass for each `for`, over the data that their
            names say are validation or test data, or over all of `data` if `classes` is given.
        **arguments: keys of the config's section `data`, e.g. `batch_size`, `crop` and `augment`, where a number stands
            for the sides of a square; those of `data.source`, e.g. `test_share` and `columns`; those of Loader, e.g.
            `world` and `positions`; `image_size` for `crop_image_size`; `labels` of a list of paths, and `classes`: the
            test data of another place than the training data need `classes=train.class_names`.

    Raises:
        ConfigError: an argument is unknown or wrong, or the data cannot be used; the message names the nearest right
            one, and what was found.
    """
    return Loader(data, split, **arguments)
