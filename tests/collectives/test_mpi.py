"""When MPI connects the ranks of a training without Horovod.

tests/test_mpi.py has the collectives themselves, on ranks that mpirun has started.
"""

from pathlib import Path

import pytest

from tests.support.commands import WARM, Finished, finish, run_ranks, start

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
