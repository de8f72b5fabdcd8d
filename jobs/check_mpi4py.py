"""Do two ranks talk to each other through mpi4py?  mpirun -n 2 python jobs/check_mpi4py.py

Sums rank + 1 over the ranks. One line from rank 0; exit code 1 if mpi4py cannot be used or sees other ranks.
"""

import sys

RANKS = 2


def main() -> int:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        print(f"failed: mpi4py cannot be used: {error}")
        return 1
    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank + 1)
    if world.rank == 0:
        library = MPI.Get_library_version().splitlines()[0].partition(",")[0].strip("\0 ").replace("\t", " ")
        right = total == sum(range(1, RANKS + 1))
        print(f"{'ok' if right else 'failed'}: mpi4py summed to {total} over {world.size} rank(s) with {library}")
    return 0 if total == sum(range(1, RANKS + 1)) else 1


if __name__ == "__main__":
    sys.exit(main())
