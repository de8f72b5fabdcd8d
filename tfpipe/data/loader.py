"""The Loader: a rank's batches for a loop of the user's own, with exact state, named failures and a time limit."""

import math
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.catalog.boxes import check_share, count_crops, own_crops
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.contract import breaches, data_contract
from tfpipe.data.failures.batches import Batches
from tfpipe.data.failures.missing import Dropped, DroppedSample
from tfpipe.data.failures.stalled import Taker, describe, on_device, pending_files, unreadable_within
from tfpipe.data.order.permutation import steps_per_epoch
from tfpipe.data.order.progress import Progress
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import build_dataset, stage_names
from tfpipe.data.runtime.input_stats import InputStats
from tfpipe.data.sources.registry import load_catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError

FORMAT = 1


class Loader(Iterator[Any]):
    """An iterator over the batches of a rank: endless for training, one exact pass for each `for` over the test data.

        with tfpipe.Loader(config) as loader:
            for images, labels in loader.epoch(0):
                ...

    Its state is that of the last batch handed out: what is prefetched does not count as used. Once `commit` is called,
    it is that of the last batch committed.
    """

    def __init__(
        self,
        config: Config,
        split: str = "train",
        world: World | None = None,
        device: str | None = None,
        *,
        timeout_s: float | None = None,
        positions: bool = False,
        ready: bool = False,
        catalog: Catalog | None = None,
        gather: Callable[[Any], list[Any]] | None = None,
        wrap: Callable[[Callable], Callable] | None = None,
    ) -> None:
        """Loads the catalog; the first batch taken builds the pipeline.

        Args:
            config: config, of which the `data` section is used.
            split: "train" or "test".
            world: this process's rank and the number of ranks; None: as launched, which Horovod connects.
            device: TensorFlow's device, e.g. "GPU:0", that a thread puts images and labels on, two batches ahead.
            timeout_s: seconds without a batch that are an error; math.inf: none are; None: `data.stall_timeout_s`.
            positions: whether to add the crops' positions to each batch, int64 [batch, 2].
            ready: whether to add the time at which a batch was ready, float64 [], in seconds since 1970.
            catalog: catalog of the split if already loaded.
            gather: function that returns every rank's value by rank, e.g. by torch.distributed; None: world.gather.
            wrap: function that gets build_dataset, and returns what builds the pipeline instead.

        Raises:
            ConfigError: a filelist, a label or an annotation folder cannot be used, or this rank would get no crop.
        """
        self.config, self.split, self.world = config, split, (world := world or World.detect())
        self.catalog = catalog or load_catalog(config.data, split, world)
        if split == "train":
            check_share(self.catalog, config.data, world)
        self._positions, self._ready, self._gather, self._put_on = positions, ready, gather or world.gather, device
        self._build_dataset = partial(wrap(build_dataset) if wrap else build_dataset, with_ready=ready)
        self._timeout_s = timeout_s or config.data.stall_timeout_s or math.inf
        self._start = Stream.start(world.size)
        self._progress = Progress(self._start, world.rank)
        self._crops_per_step = config.data.batch_size * world.size
        self._batches: Batches | None = None
        self._taker: Taker | None = None
        self._dropped: Dropped | None = None
        self._left: list[DroppedSample] = []
        self._ended, self._stats = False, InputStats(config.data.batch_size)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Loader":
        if self._ended:
            self.restart()
        return self

    def __next__(self) -> Any:
        """Returns the next batch: images, labels and, if asked for, positions and the time, as build_dataset does.

        Raises TfpipeError if a file cannot be used, which the message names, or no batch came in time.
        """
        batches, began_s = self._opened(), time.perf_counter()
        try:
            batch = next(batches) if self._taker is None else self._taker.take()
        except TimeoutError:
            raise TfpipeError(
                f"rank {self.world.rank}: no batch within {self._timeout_s:g} s: {self.waits_for()}; timeout_s or "
                "data.stall_timeout_s is how long to wait"
            ) from None
        except StopIteration:
            self._look(end=True)
            self.close()
            self._ended = True
            raise
        self._stats.add(time.perf_counter() - began_s, float(batch[3]) if self._ready else None)
        self._progress.add(batch[2])
        self._left += [] if self._dropped is None else self._dropped.add(batch[2].numpy())
        return batch if self._positions else batch[:2] + batch[3:]

    @property
    def step(self) -> int:
        """Batches handed out since the stream began; restored by `load_state_dict`."""
        return self._progress.given

    def __len__(self) -> int:
        """Returns the number of this rank's batches in a test pass.

        Raises TypeError for training data, which is endless, and if only reading the XMLs would tell: an index does.
        """
        crops = None if self.split == "train" else own_crops(self.catalog, self.config.data, self.world)
        if crops is None:
            raise TypeError(f"the number of batches of the {self.split} data is not known; see steps_per_epoch")
        return -(-crops // self.config.data.batch_size)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of batches in which all ranks together see at least an epoch's crops; every rank must ask."""
        crops = count_crops(self.catalog, self.config.data, self.world).crops
        return steps_per_epoch(crops, self.config.data.batch_size, self.world.size)

    def epoch(self, number: int) -> Iterator[Any]:
        """Yields the batches of epoch `number`, from 0, that are still to come: after a resume, the rest of it.

        Raises ValueError if the epoch is over, or an earlier one is not.
        """
        first = number * self.steps_per_epoch
        if not first <= self.step <= first + self.steps_per_epoch:
            raise ValueError(f"epoch {number} begins at step {first}, and {self.step} steps are done")
        while self.step < first + self.steps_per_epoch:
            yield next(self)

    def commit(self, step: int | None = None) -> None:
        """Counts the batches up to number `step` as used, None: all handed out; the state is of these from now on."""
        self._progress.commit(step)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data for JSON, the same on every rank; every rank must call it.

        Raises ConfigError if the ranks are not connected, and there is no `gather`.
        """
        stream, rank = self.rest(), self.world.rank
        cursors = [Cursor(*values) for values in self._gather(tuple(stream.frontiers[rank]))]
        if len(cursors) != self.world.size:
            raise ConfigError(f"rank {rank}: {self.world} reaches no other rank: give the Loader a `gather`")
        contract, crops = data_contract(self.config.data, self.catalog), self._progress.used * self._crops_per_step
        about = {"format": FORMAT, "split": self.split, "crops": crops, "contract": contract}
        return about | stream.at(cursors).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a state, of any number of ranks.

        Raises ConfigError if the state is of other data, or, with `data.scope` "shard", of another number of ranks.
        """
        different = breaches(state["contract"], data_contract(self.config.data, self.catalog))
        if state["format"] != FORMAT or state["split"] != self.split:
            different.insert(0, f"format {state['format']}, split {state['split']} then, {FORMAT}, {self.split} now")
        stream = Stream.from_dict(state)
        if self.config.data.scope == "shard" and stream.size != self.world.size:
            different.append(f'with data.scope "shard": {stream.size} ranks then, {self.world.size} now')
        if different:
            raise ConfigError("\n  ".join(["the state belongs to other data:", *different]))
        self.restart(stream.over(self.world.size), state["crops"] // self._crops_per_step)

    def rest(self) -> Stream:
        """Returns the stream after the batch that the state is of; the other ranks are where they were at its start."""
        return self._progress.rest()

    def restart(self, stream: Stream | None = None, step: int = 0) -> None:
        """Ends the pipeline, and goes to the beginning of `stream`, None: all data; before it `step` steps are done."""
        self._look()
        if self._taker is not None:
            self._taker.close()
        self._batches = self._taker = self._dropped = None
        self._progress.restart(stream or self._start, step)
        self._ended = False

    def waits_for(self) -> str:
        """Returns text that names the files of the next batches: those that cannot be read, or else a few of them."""
        paths = pending_files(self.catalog, self.config.data, self.world, self._progress.ahead(), None)
        return describe(paths, unreadable_within(paths))

    def dropped(self) -> list[DroppedSample]:
        """Returns the samples that `data.on_error` "skip" has left out on this rank since the last call, and why."""
        self._look()
        left, self._left = self._left, []
        return left

    def stats(self) -> dict[str, Any]:
        """Returns this rank's waits and rates, with `ready` also delays, and each stage's work: see InputStats.read."""
        iterator = None if self._batches is None else self._batches.iterator
        return self._stats.read(iterator, stage_names(self.catalog, self.config.data))

    def close(self) -> None:
        """Ends the pipeline. The state stays: a loop over the loader continues from it."""
        self.restart(self.rest(), self._progress.used)

    @property
    def iterator(self) -> Any:
        """The pipeline's own iterator, for its statistics."""
        return self._opened().iterator

    def _opened(self) -> Batches:
        if self._batches is None:
            data, stream = self.config.data, self._progress.stream
            self._batches = Batches(self._build, self.catalog, data, self.world, stream)
            self._taker = self._taker_of(self._batches)
            self._dropped = Dropped(self.catalog, data, self.world, stream) if data.on_error == "skip" else None
            self._stats.restart()
        return self._batches

    def _taker_of(self, batches: Batches) -> Taker | None:
        prepare, ahead = on_device(self._put_on)
        return Taker(batches, self._timeout_s, prepare, ahead) if ahead or self._timeout_s < math.inf else None

    @cached_property
    def _build(self) -> Callable[[Stream], tf.data.Dataset]:
        """Builds the dataset from a point of the stream on; that of a whole pass once, since test passes repeat it.

        It holds no reference to the loader: a thread has it, and ends when the loader is dropped.
        """
        about, start = (self.config, self.split, self.world, True), self._start
        build = partial(self._build_dataset, *about, catalog=self.catalog)
        whole = cache(lambda: build(resume=start))
        return lambda rest: whole() if rest is start else build(resume=rest)

    def _look(self, end: bool = False) -> None:
        self._left += [] if self._dropped is None else self._dropped.look(end=end)
