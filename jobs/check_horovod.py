"""Do two ranks talk to each other through Horovod?  mpirun -n 2 python jobs/check_horovod.py

Sums rank + 1 over the ranks and compares. One line from rank 0; exit code 1 if the sum or the size is wrong.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the verdict, without TensorFlow's greetings

import horovod
import horovod.tensorflow as hvd
import tensorflow as tf

RANKS = 2


def main() -> int:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if size != RANKS:
        if rank == 0:
            print(
                f"failed: Horovod sees {size} rank(s), not {RANKS}. Start it with mpirun -n {RANKS}; "
                "if you did, this mpirun does not belong to the MPI that Horovod was built with."
            )
        return 1

    # One GPU per rank, or none at all: NCCL refuses two ranks on one GPU.
    gpus = tf.config.list_physical_devices("GPU")
    enough = len(gpus) >= hvd.local_size()
    tf.config.set_visible_devices([gpus[hvd.local_rank()]] if enough else [], "GPU")

    total = float(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name="check"))
    expected = sum(range(1, RANKS + 1))
    if total != expected:
        print(f"failed: rank {rank} got {total:g} from the allreduce, not {expected}")
        return 1
    if rank == 0:
        devices = "GPUs" if gpus and enough else "CPUs"
        print(
            f"ok: Horovod {horovod.__version__} summed over {size} ranks on {devices} "
            f"(TensorFlow {tf.__version__}, Python {sys.version.split()[0]})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
