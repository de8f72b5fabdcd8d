"""Horovod's collectives, which MPI or NCCL carry."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.collectives.protocol import Backend

if TYPE_CHECKING:
    import tensorflow as tf


class HorovodCollectives:
    """All ranks that Horovod was started with. Raises ImportError if Horovod cannot be imported.

    Horovod matches tensors by name, and Keras' automatic names may differ between ranks, which would hang: every
    collective has a name of its own.
    """

    name: Backend = "horovod"
    overlaps = False

    def __init__(self) -> None:
        # A rank that waits in a collective keeps a core busy polling, which costs the decoders a quarter of their
        # throughput, unless told to yield. MPI_Init reads the variable, so it must be set before.
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size, self.local_rank, self.local_size = (
            hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(),
        )  # fmt: skip

    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="tfpipe.gather")

    def broadcast(self, value: Any) -> Any:
        return self._hvd.broadcast_object(value, root_rank=0, name="tfpipe.broadcast")

    def sum(self, values: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        return self._hvd.allreduce(tf.constant(values), op=self._hvd.Sum, name="tfpipe.sum").numpy()

    def start(self) -> None:
        """Does nothing: Horovod needs nothing of TensorFlow's."""

    def average(self, tensors: Sequence["tf.Tensor"], name: str, fp16_compression: bool = False) -> list["tf.Tensor"]:
        hvd = self._hvd
        compression = hvd.Compression.fp16 if fp16_compression else hvd.Compression.none
        return hvd.grouped_allreduce(list(tensors), op=hvd.Average, compression=compression, name=name)

    def broadcast_arrays(self, arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
        import tensorflow as tf

        return [
            self._hvd.broadcast(tf.constant(array), root_rank=0, name=f"{name}.{number}").numpy()
            for number, array in enumerate(arrays)
        ]
