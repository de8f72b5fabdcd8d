"""PyTorch's own collectives, `torch.distributed`: Gloo between CPUs, NCCL between GPUs."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.collectives.connected import HubCollectives, first_line
from tfpipe.collectives.protocol import Backend, LostRankError, by_type, in_messages
from tfpipe.errors import TfpipeError

if TYPE_CHECKING:
    import torch

START_S = 120.0
# Steps have StallWatch; another rank may take long over a test pass, so the limit is only a last resort.
LIMIT = timedelta(hours=1)


class TorchCollectives(HubCollectives):
    """The ranks of a launch, connected for tensors by a process group of PyTorch's."""

    name: Backend = "torch"
    overlaps = False

    def start(self) -> None:
        """Starts the process group, on a port that PyTorch chooses. Raises TfpipeError if it cannot."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            return
        gpus = torch.cuda.device_count()
        if gpus:
            torch.cuda.set_device(self.local_rank % gpus)
        # NCCL needs a GPU for each rank of a host.
        nccl = all(self.gather(gpus >= self.local_size))
        limit, leader = timedelta(seconds=START_S), self.hub.leader_address().strip("[]")
        try:
            if self.rank == 0:
                store = dist.TCPStore("localhost", 0, self.size, is_master=True, timeout=limit, wait_for_workers=False)
            port = self.broadcast(store.port if self.rank == 0 else None)
            if self.rank:
                store = dist.TCPStore(leader, port, self.size, is_master=False, timeout=limit)
            backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=LIMIT)
        except (RuntimeError, ValueError) as error:
            raise TfpipeError(
                f"rank {self.rank}: PyTorch's collectives cannot start ({first_line(error)}): the host's name must "
                "resolve to an address that the other ranks reach; else set GLOO_SOCKET_IFNAME to the network interface"
            ) from error

    def average(self, tensors: Sequence["torch.Tensor"], name: str, fp16_compression: bool = False) -> list[Any]:  # noqa: ARG002
        """Sends the tensors of each type in one message."""
        import torch

        def mean(parts: list[torch.Tensor]) -> list[torch.Tensor]:
            flat = torch.cat([part.detach().reshape(-1) for part in parts])
            sent = flat.half() if fp16_compression and flat.dtype.itemsize > 2 else flat
            means = (self._add(sent).to(flat.dtype) / self.size).split([part.numel() for part in parts])
            return [values.reshape(part.shape) for values, part in zip(means, parts, strict=True)]

        return in_messages(tensors, by_type(tensors), mean)

    def _add_words(self, words: np.ndarray, name: str) -> np.ndarray:  # noqa: ARG002
        import torch

        return self._add(torch.from_numpy(words.copy())).numpy()

    def _add(self, vector: "torch.Tensor") -> "torch.Tensor":
        """Returns the sum of a vector over ranks, in its own memory. Raises LostRankError if a rank has stopped."""
        import torch.distributed as dist

        try:
            dist.all_reduce(vector)
        except RuntimeError as error:
            raise LostRankError(f"rank {self.rank}: another rank has stopped ({first_line(error)})") from error
        return vector
