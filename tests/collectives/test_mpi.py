"""When MPI connects the ranks of a training without Horovod, and how it divides tensors among them.

tests/test_mpi.py has the collectives themselves, on ranks that mpirun has started.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.commands import WARM, Finished, finish, run_ranks, start
from tfpipe.collectives.mpi import MpiCollectives

DETECT = """
import logging, sys
from pathlib import Path
logging.basicConfig()
missing = ["horovod", *sys.argv[2:]]
sys.modules |= {name: None for name in [*missing, *sys.modules] if name.split(".")[0] in missing}
from tfpipe import World
CHANGE
world = World.detect(collectives="auto", folder=Path(sys.argv[1]))
print(world.backend, world.gather(world.rank))
"""
A_GPU_ON_RANK_1 = """
import os
import tensorflow as tf
tf.config.list_physical_devices = lambda kind: ["GPU:0"] * int(os.environ["OMPI_COMM_WORLD_RANK"])
"""


def detect_under_another_mpi(tmp_path: Path, *missing: str) -> list[Finished]:
    """Two processes as another MPI's mpiexec starts them: mpi4py sees one rank in each."""
    shared = {"PMI_SIZE": "2", "TFPIPE_LAUNCH": "1"}
    ranks = [
        start(*WARM, "-c", DETECT.replace("CHANGE", ""), tmp_path, *missing, PMI_RANK=str(rank), **shared)
        for rank in range(2)
    ]
    return [finish(rank) for rank in ranks]


def test_mpi_connects_ranks_without_a_gpu(tmp_path: Path) -> None:
    done = run_ranks(2, *WARM, "-c", DETECT.replace("CHANGE", ""), tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines().count("mpi [0, 1]") == 2


def test_a_gpu_of_any_rank_leaves_all_ranks_to_tensorflow(tmp_path: Path) -> None:
    done = run_ranks(2, *WARM, "-c", DETECT.replace("CHANGE", A_GPU_ON_RANK_1), tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines().count("tensorflow [0, 1]") == 2


@pytest.mark.parametrize("missing", [(), ("mpi4py",)], ids=["another-mpi", "no-mpi4py"])
def test_tensorflow_connects_ranks_that_mpi4py_does_not(tmp_path: Path, missing: tuple[str, ...]) -> None:
    for rank in detect_under_another_mpi(tmp_path, *missing):
        assert rank.code == 0, rank.err
        assert rank.out.splitlines()[-1] == "tensorflow [0, 1]"
        assert ("mpi4py sees 1 of 2 ranks" in rank.err) == (not missing)


class Equal:
    """The communicator of rank 0 of several ranks that all have the same vector, of one value."""

    def __init__(self, size: int) -> None:
        self.size = size

    def Allreduce(self, vector: np.ndarray, total: np.ndarray) -> None:
        total[:] = self.size * vector

    def Alltoall(self, vector: list[Any], shares: list[Any]) -> None:
        shares[0][:] = np.tile(vector[0][: len(vector[0]) // self.size], self.size)

    def Allgather(self, share: list[Any], vector: list[Any]) -> None:
        vector[0][:] = np.tile(share[0], self.size)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_tensors_of_any_number_of_elements_are_averaged_by_any_number_of_ranks(size: int) -> None:
    """Each rank adds an equal share of a message, also of half floats, whose sum of 7 ranks would overflow."""
    ranks = MpiCollectives.__new__(MpiCollectives)
    ranks._world, ranks._byte, ranks.size = Equal(size), None, size
    for dtype, value in (("float32", 3.0), ("float16", 3e4), ("bfloat16", 1e37)):
        for shapes in ([(1,)], [(4,), (2, 3), ()], [(0,), (5,)]):
            tensors = [tf.fill(shape, tf.cast(value, dtype)) for shape in shapes]
            for compressed in (False, dtype == "float32"):
                means = ranks.average(tensors, "gradients", compressed)
                assert [mean.dtype for mean in means] == [tensor.dtype for tensor in tensors]
                for mean, tensor in zip(means, tensors, strict=True):
                    np.testing.assert_array_equal(mean.numpy(), tensor.numpy())
