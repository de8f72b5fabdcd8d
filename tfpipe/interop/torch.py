"""PyTorch batches: build_dataset's, as torch tensors that share their memory. Import it before TensorFlow."""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError(f"tfpipe.torch needs PyTorch ({error}): pip install 'tfpipe[torch]'") from error

from tfpipe.util.process import load_triton

load_triton()

import tensorflow as tf  # noqa: E402

from tfpipe.collectives.launch import whole_number  # noqa: E402
from tfpipe.data.batch import Batch  # noqa: E402
from tfpipe.data.delivery.taker import Prepare  # noqa: E402
from tfpipe.data.runtime.shutdown import close_at_exit  # noqa: E402
from tfpipe.distributed import World  # noqa: E402
from tfpipe.errors import ConfigError  # noqa: E402
from tfpipe.interop.ahead import AheadLoader, Processes, ReadyBatch, leave_gpus  # noqa: E402
from tfpipe.util.tensorflow_api import shareable  # noqa: E402

WORKERS = (
    "tfpipe.torch works in threads of its own and cannot be taken into the processes of a DataLoader: "
    "use DataLoader(..., batch_size=None, num_workers=0); data.threads and data.parallel say how many threads"
)
BATCHED = "tfpipe.torch hands out batches, which a DataLoader would batch again: use DataLoader(..., batch_size=None)"

Tensors = tuple[torch.Tensor, ...]


class Loader(AheadLoader, IterableDataset[Tensors]):
    """tfpipe.Loader with torch tensors: the same methods, batches, state and errors.

    With a CUDA device a thread copies each batch through pinned memory on a stream of its own, a batch ahead of use. On
    the CPU the tensors share TensorFlow's memory. It is an IterableDataset, so DataLoader(loader, batch_size=None) and
    torchdata's StatefulDataLoader take it.
    """

    def __init__(
        self,
        config_or_data: Any,
        split: str = "train",
        world: World | None = None,
        *,
        device: torch.device | str | None = None,
        channels_first: bool = True,
        **options: Any,
    ) -> None:
        """Loads the catalog; the first batch taken builds the pipeline.

        Args:
            config_or_data: config, of which the `data` section is used; or any data that tfpipe.load takes.
            split: "train" or "test".
            world: this process's rank and the number of ranks; None for those of torch.distributed, if initialised.
            device: where the tensors are; None for the CPU.
            channels_first: as for `iterable`.
            **options: those of tfpipe.Loader but `ready`, `named` and `marks`, and of data, keys of the section
                `data`. `positions` are int64 [batch, 2], on the CPU; a `gather` of None is torch.distributed's.

        Raises:
            ConfigError: a filelist, a label or an annotation folder cannot be used, this rank would get no crop, or
                torchrun has started several processes and torch.distributed is not initialised.
        """
        target = torch.device("cpu" if device is None else device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        super().__init__(config_or_data, split, world, _processes(world), **options)
        self._device = target
        self._prepare_ahead(partial(_preparer, channels_first, target), 0 if target.type == "cpu" else 1)

    def __iter__(self) -> Iterator[Any]:
        _check_data_loader()
        return super().__iter__()

    def __reduce__(self) -> NoReturn:
        raise ConfigError(WORKERS)

    def _for_user(self, batch: ReadyBatch) -> tuple[Any, torch.Tensor]:
        if batch.arrived is not None:
            used_by = torch.cuda.current_stream(self._device)
            used_by.wait_event(batch.arrived)
            # Their memory may not be given to the next batch's copy before this stream is done with them.
            _each(lambda tensor: tensor.record_stream(used_by), batch.data)
        return batch.data, torch.from_numpy(batch.positions)


def _preparer(channels_first: bool, device: torch.device, *_: Any) -> Prepare:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    return partial(map, partial(_prepare, channels_first, device, stream))


def iterable(dataset: tf.data.Dataset, channels_first: bool = True) -> IterableDataset[Tensors]:
    """Returns a torch IterableDataset of a dataset's batches, for DataLoader(..., batch_size=None) or a for loop.

    Only integer labels that are not int64 are copied. A tensor stays valid as long as it is referenced. It may be
    modified in place, unless the dataset yields the same batch several times, as after `cache`. The pipeline's threads
    end with the last reference to an iterator.

    TensorFlow starts with the first dataset: tf.config.set_visible_devices([], "GPU") before that leaves the GPUs to
    torch, and without it a warning says so.

    Args:
        dataset: batches as of build_dataset: images [batch, height, width, channels], or a tuple of them, by view;
            labels, if they have any, and further tensors.
        channels_first: True for images [batch, channels, height, width] in torch.channels_last memory format, the
            order in which the dataset stores them; False for [batch, height, width, channels].

    Returns:
        Batches of images, of the dataset's dtype (uint8 unless `data.dtype` is set); labels, int64 [batch], or of their
        own dtype if that is floating point; and the dataset's further tensors unchanged, e.g. positions, int64
        [batch, 2]. Every iteration starts from the beginning.

    Raises:
        ConfigError: the dataset's elements are not such batches; or, when iterated, num_workers is above 0.
    """
    if not _usable(dataset.element_spec):
        raise ConfigError(
            "tfpipe.torch.iterable wants tuples of images [batch, height, width, channels], labels, and more tensors "
            f"if need be, none of them strings; received elements of {dataset.element_spec}"
        )
    leave_gpus()
    return _Batches(close_at_exit(dataset), channels_first)


def _check_data_loader() -> None:
    """Raises ConfigError if the iterator is for a DataLoader that has workers, or would batch the batches."""
    if get_worker_info() is not None:
        raise ConfigError(WORKERS)
    # torch has no hook for this: what calls iter() is the DataLoader's fetcher.
    if getattr(inspect.stack(0)[2].frame.f_locals.get("self"), "auto_collation", False):
        raise ConfigError(BATCHED)


def _usable(spec: Any) -> bool:
    if type(spec) is not tuple:
        return False
    views = spec[0] if type(spec[0]) is tuple else spec[:1]
    if not all(isinstance(part, tf.TensorSpec) and part.dtype != tf.string for part in (*views, *spec[1:])):
        return False
    return all(view.shape.rank in (4, None) for view in views)


class _Batches(IterableDataset[Tensors]):
    def __init__(self, dataset: tf.data.Dataset, channels_first: bool) -> None:
        super().__init__()
        self.dataset, self.channels_first = dataset, channels_first

    def __iter__(self) -> Iterator[Tensors]:
        _check_data_loader()
        return self._batches()

    def __reduce__(self) -> NoReturn:
        # A DataLoader that spawns workers, instead of forking them, pickles the dataset.
        raise ConfigError(WORKERS)

    def _batches(self) -> Iterator[Tensors]:
        # Only the loop holds the dataset's iterator, so that closing this generator ends the pipeline.
        for batch in self.dataset:
            data = tf.nest.map_structure(lambda part: _tensor(part, self.channels_first), batch[:2])
            yield *data, *(torch.from_dlpack(shareable(part)) for part in batch[2:])


def _tensor(part: tf.Tensor, channels_first: bool) -> Any:
    """Returns images [batch, height, width, channels], of the same memory, or something else of each crop.

    Texts become a list. Whole numbers, except of images, become int64, which torch's losses require.
    """
    if part.dtype == tf.string:
        return [text.decode() for text in part.numpy().tolist()]
    tensor = torch.from_dlpack(shareable(part))
    if part.shape.rank == 4:
        return tensor.permute(0, 3, 1, 2) if channels_first else tensor
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor.to(torch.int64)


def _prepare(channels_first: bool, device: torch.device, stream: torch.cuda.Stream | None, batch: Batch) -> ReadyBatch:
    data = _structure(batch.data, channels_first)
    if stream is None:
        return ReadyBatch(_each(lambda tensor: tensor.to(device), data), batch.positions.numpy())
    with torch.cuda.stream(stream):
        # Only from pinned memory does a copy run at the same time as the computation.
        moved = _each(lambda tensor: tensor.pin_memory().to(device, non_blocking=True), data)
        return ReadyBatch(moved, batch.positions.numpy(), stream.record_event())


def _structure(data: Any, channels_first: bool) -> Any:
    """Returns a batch's data as torch has it: a dictionary of ragged parts as a list of one for each crop."""
    if isinstance(data, dict) and any(isinstance(part, tf.RaggedTensor) for part in data.values()):
        parts = {name: _rows(part, channels_first) for name, part in data.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if isinstance(data, dict):
        return {name: _structure(part, channels_first) for name, part in data.items()}
    if isinstance(data, tuple):
        return tuple(_structure(part, channels_first) for part in data)
    return _tensor(data, channels_first)


def _rows(part: tf.Tensor | tf.RaggedTensor, channels_first: bool) -> Sequence[Any]:
    """Returns what a part of a batch has of each crop."""
    if not isinstance(part, tf.RaggedTensor):
        return _tensor(part, channels_first)
    return torch.split(_tensor(part.values, channels_first), part.row_lengths().numpy().tolist())


def _each(change: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Changes each tensor of a batch's data; texts stay."""
    return tf.nest.map_structure(lambda part: change(part) if isinstance(part, torch.Tensor) else part, data)


def _processes(world: World | None) -> Processes | None:
    """Returns the processes of torch.distributed; raises ConfigError if it has none, though there should be some."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size(), _gather)
    if world is None and (size := whole_number(os.environ, "WORLD_SIZE") or 1) > 1:
        raise ConfigError(
            f"WORLD_SIZE is {size}, as under torchrun, but torch.distributed is not initialised: call "
            "torch.distributed.init_process_group() before tfpipe.torch.Loader, or give it a world"
        )
    return None


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
