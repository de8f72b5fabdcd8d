"""Batches for PyTorch: those of build_dataset, as torch tensors in the same memory. Import it before TensorFlow."""

from collections.abc import Iterator
from typing import Any, NoReturn

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError(f"tfpipe.torch needs PyTorch ({error}): pip install 'tfpipe[torch]'") from error

from tfpipe.triton import load_triton

load_triton()

import tensorflow as tf  # noqa: E402

from tfpipe.data.closing import close_at_exit  # noqa: E402
from tfpipe.errors import ConfigError  # noqa: E402

WORKERS = (
    "tfpipe.torch.iterable works in threads of its own and cannot be taken into the processes of a DataLoader: "
    "use DataLoader(..., batch_size=None, num_workers=0); data.threads and data.parallel say how many threads"
)

Batch = tuple[torch.Tensor, ...]


def iterable(dataset: tf.data.Dataset, channels_first: bool = True) -> IterableDataset[Batch]:
    """A torch IterableDataset of a dataset's batches, for DataLoader(..., batch_size=None) or a for loop.

    Nothing is copied but the labels, where they are not int64 yet. A tensor stays valid for as long as it is kept. It
    may be written to in place, unless the dataset gives the same batch several times, as after `cache`. With the last
    reference to an iterator, its threads end.

    Args:
        dataset: as of build_dataset: images [batch, height, width, channels], labels, and anything more.
        channels_first: True for images [batch, channels, height, width], in torch.channels_last memory format, which
            is the order in which the dataset has them; False for [batch, height, width, channels].

    Returns:
        Batches of images, of the dataset's dtype (uint8 unless `data.dtype` says otherwise); labels int64 [batch],
        or of their own dtype if that is no integer; and what more the dataset has, as it is: positions int64
        [batch, 2], say. Every iteration begins anew.

    Raises:
        ConfigError: the dataset's elements are no such batches; or, once iterated over, num_workers is above 0.
    """
    if not _usable(dataset.element_spec):
        raise ConfigError(
            "tfpipe.torch.iterable wants batches of images [batch, height, width, channels], labels, and more tensors "
            f"if need be, none of them strings; received elements of {dataset.element_spec}"
        )
    close_at_exit()
    return _Batches(dataset, channels_first)


def _usable(spec: Any) -> bool:
    if not isinstance(spec, tuple) or len(spec) < 2 or not all(isinstance(each, tf.TensorSpec) for each in spec):
        return False
    return spec[0].shape.rank in (4, None) and all(each.dtype != tf.string for each in spec)


class _Batches(IterableDataset[Batch]):
    def __init__(self, dataset: tf.data.Dataset, channels_first: bool) -> None:
        super().__init__()
        self.dataset, self.channels_first = dataset, channels_first

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:
            raise ConfigError(WORKERS)
        return self._batches()

    def __reduce__(self) -> NoReturn:
        # Of processes that are spawned, not forked.
        raise ConfigError(WORKERS)

    def _batches(self) -> Iterator[Batch]:
        # The loop alone holds the dataset's iterator, so that closing this generator ends the pipeline.
        for batch in self.dataset:
            images, labels, *more = map(torch.from_dlpack, batch)
            if self.channels_first:
                images = images.permute(0, 3, 1, 2)
            if not labels.is_floating_point():
                labels = labels.to(torch.int64)  # what torch's losses take
            yield images, labels, *more
