"""The collectives of ranks that a launcher of MPI's has started: by mpi4py, for tools too, and by Horovod."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.collectives.protocol import Backend, by_type, in_messages
from tfpipe.errors import ConfigError
from tfpipe.util.process import yield_when_idle

if TYPE_CHECKING:
    import tensorflow as tf


class MpiCollectives:
    """All ranks that mpirun has started. Raises ConfigError if mpi4py or its MPI is not installed."""

    name: Backend = "mpi"
    overlaps = False

    def __init__(self) -> None:
        yield_when_idle()
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigError(f"mpi4py cannot be imported ({error}); install tfpipe[mpi] and an MPI") from error
        self._world, self._byte = MPI.COMM_WORLD, MPI.BYTE
        local = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.rank, self.size = self._world.rank, self._world.size
        self.local_rank, self.local_size = local.rank, local.size

    def gather(self, value: Any) -> list[Any]:
        return self._world.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._world.bcast(value, root=0)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return self._world.allreduce(values)

    def start(self) -> None:
        """Does nothing: MPI needs nothing of TensorFlow's."""

    def average(self, tensors: Sequence["tf.Tensor"], name: str, fp16_compression: bool = False) -> list["tf.Tensor"]:  # noqa: ARG002
        """Sends the tensors of each type in one message."""
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]

        def mean(parts: list[tf.Tensor]) -> list[tf.Tensor]:
            dtype, lengths = parts[0].dtype, [part.shape.num_elements() for part in parts]
            lengths.append(-sum(lengths) % self.size)  # each rank adds an equal share
            halves = dtype == tf.float16 or fp16_compression
            # MPI has no bfloat16, whose range float16 has not.
            sent = tf.float16 if halves else tf.float32 if dtype == tf.bfloat16 else dtype
            filled = [tf.reshape(part, [-1]) for part in parts] + [tf.zeros(lengths[-1], dtype)]
            flat = tf.concat([tf.cast(part, sent) for part in filled], 0)
            means = self._mean_of_halves(flat) if halves else self._call(self._add, flat, sum(lengths)) / self.size
            split = zip(tf.split(means, lengths), parts, strict=False)
            return [tf.cast(tf.reshape(values, part.shape), dtype) for values, part in split]

        return in_messages(tensors, by_type(tensors), mean)

    def broadcast_arrays(self, arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:  # noqa: ARG002
        return [self.broadcast(array) for array in arrays]

    def _mean_of_halves(self, vector: "tf.Tensor") -> "tf.Tensor":
        """Returns the mean over ranks of a float16 vector, which each rank adds for its share of it.

        It is added as float32: MPI has no float16, and its sum would overflow before the mean does.
        """
        import tensorflow as tf

        length = vector.shape[0]
        shares = tf.split(self._call(self._exchange, vector, length), self.size)
        mean = tf.add_n([tf.cast(share, tf.float32) for share in shares]) / self.size
        return self._call(self._join, tf.cast(mean, tf.float16), length)

    @staticmethod
    def _call(function: Callable[[np.ndarray], np.ndarray], vector: "tf.Tensor", length: int) -> "tf.Tensor":
        """Returns the vector of `length` that a function of NumPy arrays returns, in TensorFlow's graph too.

        Python runs once or twice a step, and waits for the ranks without the GIL: 45 MB take 0 to 7 ms more than
        Horovod's op, which has none (profiles/collectives.py).
        """
        import tensorflow as tf

        # MPI matches calls by their order, which TensorFlow keeps between stateful ops.
        result = tf.numpy_function(function, [vector], vector.dtype, stateful=True)
        return tf.ensure_shape(result, [length])

    def _add(self, vector: np.ndarray) -> np.ndarray:
        total = np.empty_like(vector)
        self._world.Allreduce(vector, total)
        return total

    def _exchange(self, vector: np.ndarray) -> np.ndarray:
        """Returns this rank's share of each rank's vector, one after the other."""
        shares = np.empty_like(vector)
        self._world.Alltoall([vector, self._byte], [shares, self._byte])
        return shares

    def _join(self, share: np.ndarray) -> np.ndarray:
        vector = np.empty(len(share) * self.size, share.dtype)
        self._world.Allgather([share, self._byte], [vector, self._byte])
        return vector


class HorovodCollectives:
    """All ranks that Horovod was started with. Raises ImportError if Horovod cannot be imported.

    Horovod matches tensors by name, and Keras' automatic names may differ between ranks, which would hang: every
    collective has a name of its own.
    """

    name: Backend = "horovod"
    overlaps = False

    def __init__(self) -> None:
        yield_when_idle()
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()

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
