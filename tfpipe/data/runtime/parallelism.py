"""Sets the pipeline's number of threads and each stage's number of parallel calls."""

from typing import Any, Literal, NamedTuple

from tfpipe.config import DataConfig
from tfpipe.distributed import World
from tfpipe.util.resources import usable_cpus

AUTOTUNE = -1  # tf.data.AUTOTUNE
# Default number of parallel reads. Reads wait for storage, so more of them than CPUs pay off: with a latency of 20 ms
# per file, 64 give 29 times the images/s of two; without latency, 1.08 times (profiles/storage.py).
READS = 64
# Decode calls beyond one a thread, as a share of the threads. Batches keep their order, so a thread whose call ends
# before an earlier one's would wait: 2, 8 and 11 % of the time of 2, 16 and 32 threads (profiles/decode_calls.py).
SPARE_CALLS = 1 / 4
# The same if a few images are huge: p99 of the wait for a batch is then 1 to 21 ms, with a quarter 49 to 57 ms
# (profiles/huge.py). For other data this costs 2 to 3 % of the threads' time.
SPARE_UNEVEN = 2


class Calls(NamedTuple):
    """Number of parallel calls of each stage; None for one at a time, in the caller's thread; AUTOTUNE is tf.data's."""

    read: int | None
    decode: int | None


def calls_at_once(config: DataConfig, world: World, *, uneven: bool = False) -> Calls:
    """Returns the number of parallel calls, from `data.parallel` and `data.num_parallel_readers`.

    `uneven`: whether a few images are huge next to the others.

    AUTOTUNE only where asked for: it allows at most as many calls as there are threads, and 10 times as many reads,
    whose pool is unbounded (profiles/storage.py has what it costs). Reads run in threads outside the pipeline's pool:
    with a pool large enough for both, decoders were 13 % slower.
    """

    def calls(of_stage: int | Literal["auto", "autotune"] | None, default: int) -> int | None:
        setting = of_stage or config.num_parallel_readers
        if setting == "autotune":
            return AUTOTUNE
        return default if setting == "auto" else None if setting == 1 else setting

    threads = thread_budget(config, world)
    decodes = threads + max(1, int((SPARE_UNEVEN if uneven else SPARE_CALLS) * threads))
    return Calls(calls(config.parallel.read, READS), calls(config.parallel.decode, decodes))


def options(config: DataConfig, world: World) -> Any:
    """Returns tf.data.Options: the pipeline's number of threads, the limits of autotuning, and when reading begins."""
    import tensorflow as tf

    from tfpipe.util.tensorflow_api import unbounded_threads

    serial = config.num_parallel_readers == 1
    result = tf.data.Options()
    threads = thread_budget(config, world)
    result.threading.private_threadpool_size = result.autotune.cpu_budget = threads
    if not serial and not unbounded_threads():
        # Otherwise reads that wait would leave the decoders no thread: of storage with 20 ms of latency, 91 images/s in
        # place of 2,500. It costs 2 to 5 % of the rate from a local disk (docs/versions.md).
        reads = calls_at_once(config, world).read or 0
        result.threading.private_threadpool_size += READS if reads == AUTOTUNE else reads
    if serial:
        # Otherwise tf.data would parallelise a serial pipeline by itself.
        result.autotune.enabled = False
        result.experimental_optimization.map_parallelization = False
    # An iterator reads and decodes ahead from when it is made, not from when its first element is asked for.
    result.experimental_warm_start = True
    if config.prefetch_buffer_size == 0:
        result.experimental_optimization.inject_prefetch = False
    return result


def thread_budget(config: DataConfig, world: World) -> int:
    """Returns the number of threads in this rank's pipeline that may keep a CPU busy at the same time."""
    if config.num_parallel_readers == 1:
        return 1
    if isinstance(config.threads, int):
        return config.threads
    return max(1, round((config.threads or 1) * (world.threads or usable_cpus())))
