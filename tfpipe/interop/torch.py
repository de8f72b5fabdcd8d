"""PyTorch batches: build_dataset's, as torch tensors that share their memory. Import it before TensorFlow."""

from collections.abc import Iterator
from typing import Any, NoReturn

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError(f"tfpipe.torch needs PyTorch ({error}): pip install 'tfpipe[torch]'") from error

from tfpipe.interop.triton import load_triton

load_triton()

import tensorflow as tf  # noqa: E402

from tfpipe.data.runtime.shutdown import close_at_exit  # noqa: E402
from tfpipe.errors import ConfigError  # noqa: E402

WORKERS = (
    "tfpipe.torch.iterable works in threads of its own and cannot be taken into the processes of a DataLoader: "
    "use DataLoader(..., batch_size=None, num_workers=0); data.threads and data.parallel say how many threads"
)

Batch = tuple[torch.Tensor, ...]


def iterable(dataset: tf.data.Dataset, channels_first: bool = True) -> IterableDataset[Batch]:
    """Returns a torch IterableDataset of a dataset's batches, for DataLoader(..., batch_size=None) or a for loop.

    Only integer labels that are not int64 are copied. A tensor stays valid as long as it is referenced. It may be
    modified in place, unless the dataset yields the same batch several times, as after `cache`. The pipeline's threads
    end with the last reference to an iterator.

    Args:
        dataset: batches as of build_dataset: images [batch, height, width, channels], labels, and further tensors.
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
            "tfpipe.torch.iterable wants batches of images [batch, height, width, channels], labels, and more tensors "
            f"if need be, none of them strings; received elements of {dataset.element_spec}"
        )
    close_at_exit()
    return _Batches(dataset, channels_first)


def _usable(spec: Any) -> bool:
    if not isinstance(spec, tuple) or len(spec) < 2 or not all(isinstance(part, tf.TensorSpec) for part in spec):
        return False
    return spec[0].shape.rank in (4, None) and all(part.dtype != tf.string for part in spec)


class _Batches(IterableDataset[Batch]):
    def __init__(self, dataset: tf.data.Dataset, channels_first: bool) -> None:
        super().__init__()
        self.dataset, self.channels_first = dataset, channels_first

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:
            raise ConfigError(WORKERS)
        return self._batches()

    def __reduce__(self) -> NoReturn:
        # A DataLoader that spawns workers, instead of forking them, pickles the dataset.
        raise ConfigError(WORKERS)

    def _batches(self) -> Iterator[Batch]:
        # Only the loop holds the dataset's iterator, so that closing this generator ends the pipeline.
        for batch in self.dataset:
            images, labels, *others = map(torch.from_dlpack, batch)
            if self.channels_first:
                images = images.permute(0, 3, 1, 2)
            if not labels.is_floating_point():
                labels = labels.to(torch.int64)  # required by torch's losses
            yield images, labels, *others
