"""TensorFlow's own collectives: gRPC between CPUs, NCCL between GPUs; nothing has to be built or installed."""

import signal
import socket
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tfpipe.collectives.connected import HubCollectives
from tfpipe.collectives.launch import Launch, is_loopback
from tfpipe.collectives.protocol import Backend, in_messages
from tfpipe.errors import TfpipeError
from tfpipe.util.process import bypass_proxy, ending_after, kept_handler

if TYPE_CHECKING:
    import tensorflow as tf

# Gradients are sent in messages of this size, so that those of the last layers travel while others are computed.
BUCKET_BYTES = 8 << 20
START_S, LIMIT_S = 120.0, 1800.0
GROUP, HOST_GROUP = 1, 2  # TensorFlow's keys for the group of the devices that train, and for that of the hosts' CPUs


class TensorFlowCollectives(HubCollectives):
    """The ranks of a launch, connected for tensors by `tf.distribute.MultiWorkerMirroredStrategy`.

    The strategy only starts the servers: Keras cannot apply an optimizer within it.
    """

    name: Backend = "tensorflow"
    overlaps = True

    def __init__(self, launch: Launch, folder: Path) -> None:
        super().__init__(launch, folder)
        self._strategy: tf.distribute.Strategy | None = None
        self._device, self._hint = "CPU:0", "ring"
        self._tokens: list[tf.Variable] = []

    def start(self) -> None:
        """Starts TensorFlow's server on a free port of each rank. Raises TfpipeError if this rank cannot.

        If another one cannot, this process ends after START_S seconds, with code 1 and its stack.
        """
        import tensorflow as tf

        if self._strategy is not None:
            return
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        gpus = tf.config.get_visible_devices("GPU")
        address = (self.hub.own_address(), self.hub.leader_address(), port, bool(gpus))
        every = self.gather(address)
        addresses = reachable([address for address, *_ in every], [leader for _, leader, *_ in every])
        bypass_proxy(addresses)
        if all(has_gpu for *_, has_gpu in every):
            self._device = "GPU:0"
            # NCCL needs a GPU for each rank of a host.
            enough = len(tf.config.list_physical_devices("GPU")) >= self.local_size
            self._hint = "nccl" if all(self.gather(enough)) else "ring"
        workers = [f"{address}:{number}" for address, (_, _, number, _) in zip(addresses, every, strict=True)]
        distribute = tf.distribute
        implementation = distribute.experimental.CommunicationImplementation(self._hint.upper())
        options = distribute.experimental.CommunicationOptions(implementation=implementation)
        resolver = distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": workers}), task_type="worker", task_id=self.rank, rpc_layer="grpc"
        )
        try:
            # TensorFlow waits for the other servers without a limit, and its handler only takes a note of the signal.
            with ending_after(START_S), kept_handler(signal.SIGTERM):
                self._strategy = distribute.MultiWorkerMirroredStrategy(
                    cluster_resolver=resolver, communication_options=options
                )
        except (tf.errors.OpError, RuntimeError) as error:
            raise TfpipeError(
                f"rank {self.rank}: TensorFlow's collectives cannot start at {workers[self.rank]}, an address of this "
                f"host ({error}): start the run again, which takes another port"
            ) from error
        if self._hint == "nccl":
            with tf.device(self._device):
                # Orders the collectives, which NCCL needs in the same order on all ranks.
                self._tokens = [tf.Variable(0.0)]

    def average(self, tensors: Sequence["tf.Tensor"], name: str, fp16_compression: bool = False) -> list["tf.Tensor"]:
        import tensorflow as tf

        tensors, number = [tf.convert_to_tensor(tensor) for tensor in tensors], count()

        def mean(parts: list[tf.Tensor]) -> list[tf.Tensor]:
            flat, message = tf.concat([tf.reshape(part, [-1]) for part in parts], 0), f"{name}.{next(number)}"
            with tf.device(self._device):
                if fp16_compression and flat.dtype.size > 2:
                    total = self._add(tf.cast(flat, tf.float16), GROUP, message)
                    flat = tf.cast(total, flat.dtype) / tf.cast(self.size, flat.dtype)
                else:
                    flat = self._add(flat, GROUP, message, "Div")
            split = zip(tf.split(flat, [part.shape.num_elements() for part in parts]), parts, strict=True)
            return [tf.reshape(values, part.shape) for values, part in split]

        return in_messages(tensors, buckets([(tensor.dtype, tensor.shape) for tensor in tensors]), mean)

    def _add_words(self, words: np.ndarray, name: str) -> np.ndarray:
        import tensorflow as tf

        with tf.device("CPU:0"):
            return self._add(tf.constant(words), HOST_GROUP, name).numpy()

    def _add(self, vector: "tf.Tensor", group: int, name: str, final: str = "Id") -> "tf.Tensor":
        """Returns the sum of a vector over ranks, or with `final` "Div" the mean; `name` is the same on every rank."""
        import tensorflow as tf

        trains = group == GROUP
        return tf.raw_ops.CollectiveReduceV2(
            input=vector,
            group_size=self.size,
            group_key=group,
            # A collective is recognised by its key: the same on all ranks, in whatever order they trace their graphs.
            instance_key=zlib.crc32(f"{name} {vector.dtype.name} {vector.shape[0]}".encode()) >> 1,
            ordering_token=[token.handle for token in self._tokens] if trains else [],
            merge_op="Add",
            final_op=final,
            communication_hint=self._hint if trains else "ring",
            # Steps have StallWatch. TensorFlow keeps each limit until it is over, so steps must not set one.
            timeout_seconds=0.0 if trains else LIMIT_S,
        )


def buckets(kinds: Sequence[tuple["tf.DType", "tf.TensorShape"]]) -> Iterator[list[int]]:
    """Yields the indices of tensors that are sent in one message: of one type and some BUCKET_BYTES, the last first.

    The gradients of the last layers are the first that are known.
    """
    bucket: list[int] = []
    filled, last = 0, None
    for index in reversed(range(len(kinds))):
        dtype, shape = kinds[index]
        if bucket and (dtype != last or filled >= BUCKET_BYTES):
            yield bucket
            bucket, filled = [], 0
        bucket.append(index)
        filled, last = filled + dtype.size * shape.num_elements(), dtype
    if bucket:
        yield bucket


def reachable(addresses: Sequence[str], leader: Sequence[str]) -> list[str]:
    """Returns an address of each rank's host at which the others reach it.

    Takes, by rank, its own end of its connection with rank 0, empty for rank 0, and rank 0's end.
    """
    outside = [address for address in leader if address and not is_loopback(address)]
    rank0 = outside[0] if outside else "127.0.0.1"
    # A rank that reaches rank 0 over the loopback is on its host.
    return [rank0 if not address or is_loopback(address) else address for address in addresses]
