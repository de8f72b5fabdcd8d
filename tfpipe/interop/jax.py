"""JAX batches: build_dataset's, as arrays that are on their devices before they are used."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

try:
    import jax
    from jax.experimental import multihost_utils
except ImportError as error:
    raise ImportError(f"tfpipe.jax needs JAX ({error}): pip install 'tfpipe[jax]'") from error

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.masks import VOID
from tfpipe.data.batch import Batch
from tfpipe.data.crop_counts import own_crops
from tfpipe.data.delivery.taker import Prepare
from tfpipe.data.failures.batches import Batches
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.interop.ahead import AheadLoader, Processes, ReadyBatch

BATCHES_AHEAD = 2
# The label of what only fills up a batch.
NO_LABEL = -1

Place: TypeAlias = jax.Device | jax.sharding.Sharding | None


class Loader(AheadLoader):
    """tfpipe.Loader with jax.Arrays: the same methods, batches, state and errors.

    A thread puts each batch on its devices, two batches ahead of use. On the CPU the arrays share TensorFlow's memory,
    which nothing else writes to.
    """

    def __init__(
        self,
        config_or_data: Any,
        split: str = "train",
        world: World | None = None,
        *,
        device: jax.Device | None = None,
        sharding: jax.sharding.Sharding | None = None,
        **options: Any,
    ) -> None:
        """Loads the catalog; the first batch taken builds the pipeline.

        Args:
            config_or_data: config, of which the `data` section is used; or any data that tfpipe.load takes.
            split: "train" or "test".
            world: this process's rank and the number of ranks; None for JAX's processes.
            device: where the arrays are; None for JAX's default device.
            sharding: instead of a device, how a global array, of the batches of all processes, lies on the devices of
                all, e.g. `NamedSharding(mesh, PartitionSpec("data"))`. All batches are then of the same size, and every
                process has the same number of them: what a test pass lacks is filled up with zeros and labels of -1.
            **options: those of tfpipe.Loader but `ready`, `named` and `marks`, and of data, keys of the section
                `data`. `positions` are NumPy's int64 [batch, 2], of this process; a `gather` of None is JAX's.

        Raises:
            ConfigError: a filelist, a label or an annotation folder cannot be used, this rank would get no crop, or the
                number of batches of a sharded test pass is not known.
        """
        processes = Processes(jax.process_index(), jax.process_count(), _gather)
        super().__init__(config_or_data, split, world, processes, **options)
        if self.config.data.targets.max_boxes == "ragged":
            raise ConfigError('tfpipe.jax: JAX has no ragged arrays: data.targets.max_boxes must not be "ragged"')
        if split == "test" and sharding is not None:
            _check_ranks(self)
            self._lengths.is_padded = True
        place = device if sharding is None else sharding
        self._prepare_ahead(partial(_preparer, place, self.data.config.batch_size), BATCHES_AHEAD)


def _preparer(place: Place, rows: int, batches: Batches, count: int | None) -> Prepare:
    if count is None:
        return partial(map, partial(_prepare, place, None))
    prepared, spec = partial(map, partial(_prepare, place, rows)), batches.element_spec
    empty = tf.nest.map_structure(lambda part: tf.zeros([0, *[n or 0 for n in part.shape[1:]]], part.dtype), spec)
    return lambda batches: prepared(_pad_with_empty(batches, count, empty))


def _check_ranks(loader: Loader) -> None:
    """Raises ConfigError if the number of a rank's test batches is not known, or a rank has none."""
    world = loader.world
    crops = [own_crops(replace(loader.data, world=World(rank, world.size))) for rank in range(world.size)]
    counts = [count for count in crops if count is not None]
    if len(counts) < len(crops):
        raise ConfigError(
            "with a sharding every process needs the same number of test batches, and only the XMLs tell how many "
            "crops each has: build an index (tfpipe index), or set data.test_crop to another value than boxes"
        )
    if not min(counts):
        raise ConfigError(f"rank {counts.index(0)} has no test data, of {counted(len(loader.catalog), 'image')}")


def _pad_with_empty(batches: Iterator[Batch], count: int, empty: Batch) -> Iterator[Batch]:
    """Yields batches and, once they end, empty ones until there are `count`."""
    for batch in batches:
        yield batch
        count -= 1
    for _ in range(count):
        yield empty


def _prepare(place: Place, rows: int | None, batch: Batch) -> ReadyBatch:
    """Puts the arrays of a batch on their devices, filled up to `rows` rows."""
    data = tf.nest.map_structure(_array, batch.data)
    if rows is not None and (missing := rows - len(batch.positions)):
        parts = data if isinstance(data, tuple) else (data,)
        fill = [partial(_fill, count=missing, is_label=number == 1) for number in range(len(parts))]
        filled = tuple(map(tf.nest.map_structure, fill, parts))
        data = filled if isinstance(data, tuple) else filled[0]
    if isinstance(place, jax.sharding.Sharding):
        put = partial(jax.make_array_from_process_local_data, place)
    else:
        put = partial(jax.device_put, device=place)
    arrays = jax.tree.map(lambda part: part if part.dtype.kind == "U" else put(part), data)
    return ReadyBatch(arrays, np.asarray(batch.positions))


def _array(part: tf.Tensor) -> np.ndarray:
    """Returns a part of a batch; texts, which no device takes, stay NumPy's."""
    array = np.asarray(part)
    return np.array([text.decode() for text in array.tolist()], str) if array.dtype == object else array


def _fill(array: np.ndarray, count: int, is_label: bool = False) -> np.ndarray:
    """Returns `array` with more rows: whole numbers with a sign and labels are NO_LABEL, masks VOID, others 0."""
    if is_label and array.dtype == np.uint8:
        value = VOID
    else:
        value = NO_LABEL if array.dtype.kind in ("if" if is_label else "i") else 0
    if array.dtype.kind == "U":
        return np.concatenate([array, np.full(count, "")])
    return np.concatenate([array, np.full_like(array, value, shape=(count, *array.shape[1:]))])


def _gather(value: Any) -> list[Any]:
    """Returns the value of every JAX process, by its index."""
    if jax.process_count() == 1:
        return [value]
    # As bytes, since JAX would make integers of 32 bits of those of 64.
    contents = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(contents)))
    rows = multihost_utils.process_allgather(_fill(contents, int(sizes.max()) - len(contents)))
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(np.asarray(rows), sizes, strict=True)]
