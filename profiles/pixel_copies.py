"""What copying a packed crop of pixels costs in CPU time: python profiles/pixel_copies.py. Needs a C compiler.

Each way copies batches of 128 crops of 224x224, from random places of 500 MB, in as many threads as there are CPUs; the
ways run in turns. tfpipe's copy (tfpipe/native/pixels/copy.c) is built for different numbers of places at once.
"""

import argparse
import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from needs import need_programs

from tfpipe.data.runtime.buffer_pool import allocate_aligned

SOURCE = Path(__file__).resolve().parents[1] / "tfpipe" / "native" / "pixels" / "copy.c"
BATCH, BYTES, BATCHES, KEPT = 128, 224 * 224 * 3, 40, 5

Copy = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
"""(data (uint8 [n, BYTES]), numbers (int64 [k]), out (uint8 [k, BYTES]))."""


def by_numpy(data: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    """Copies by one call of NumPy; with the mode "raise" it would copy twice."""
    np.take(data, numbers, axis=0, out=out, mode="clip")


def by_tfpipe(places: int, folder: Path) -> Copy:
    """Builds tfpipe's copy for so many places."""
    library = folder / f"copy{places}.so"
    options = ["-std=gnu11", "-O3", "-fPIC", "-shared", f"-DPLACES={places}"]
    subprocess.run(["cc", *options, str(SOURCE), "-o", str(library)], check=True)
    stream = ctypes.CDLL(str(library)).tfpipe_stream
    stream.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    stream.restype = None

    def copy(data: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
        for place, address in enumerate((data.ctypes.data + BYTES * numbers).tolist()):
            stream(out.ctypes.data + BYTES * place, address, BYTES)

    return copy


def main(args: argparse.Namespace) -> None:
    """Prints a line for each way."""
    need_programs("cc", advice="install a C compiler: apt-get install gcc")
    data = allocate_aligned((args.records, BYTES))
    data[:] = 1
    threads = len(os.sched_getaffinity(0))
    buffers = [[allocate_aligned((BATCH, BYTES)) for _ in range(KEPT)] for _ in range(threads)]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as pool:
        ways = {"numpy.take": by_numpy}
        ways |= {f"tfpipe, {places} at once": by_tfpipe(places, Path(folder)) for places in args.places}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.turns + 1):
            for name, copy in ways.items():
                cost = np.mean(list(pool.map(lambda own, copy=copy: turn(copy, data, own), buffers)))
                costs[name] += [float(cost)] if number else []
    for name, cost in costs.items():
        print(f"{name:18} {median(cost):5.2f} us of CPU time a crop ({min(cost):.2f} to {max(cost):.2f})")


def turn(copy: Copy, data: np.ndarray, buffers: list[np.ndarray]) -> float:
    """Copies some batches; returns microseconds of this thread's CPU time for each crop."""
    draws, begin_s = np.random.default_rng(), time.thread_time()
    for number in range(BATCHES):
        copy(data, draws.integers(len(data), size=BATCH), buffers[number % KEPT])
    return (time.thread_time() - begin_s) / (BATCHES * BATCH) * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, nargs="+", default=[1, 2, 4, 8], help="[%(default)s]")
    parser.add_argument("--records", type=int, default=3500, help="crops in memory [%(default)s]")
    parser.add_argument("--turns", type=int, default=11, help="[%(default)s]")
    main(parser.parse_args())
