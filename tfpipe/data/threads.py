"""The pipeline's threads: how many, and how much each stage has under way at once."""

import os
from typing import Literal, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.distributed import World

# Images read at once unless the config says otherwise. They wait, so it takes more of them than there are CPUs: where a
# file takes 20 ms to come, 64 give 29 times the images of two, and where it takes nothing 1.08 times
# (profiles/storage.py).
READS = 64


class Calls(NamedTuple):
    """Of each stage, how many calls are under way at once; None for one, in the caller's own thread."""

    read: int | None
    decode: int | None


def calls_at_once(config: DataConfig, world: World) -> Calls:
    """As `data.parallel` and `data.num_parallel_readers` say.

    AUTOTUNE is left out of it: for decoding it chooses as many calls as there are threads, whatever its budget of CPUs.
    Reads have threads of their own, beyond the pipeline's: in a pool large enough for them the decoders were 13 %
    slower.
    """

    def calls(of_stage: int | Literal["auto"] | None, default: int) -> int | None:
        chosen = of_stage or config.num_parallel_readers
        return default if chosen == "auto" else None if chosen == 1 else chosen

    return Calls(calls(config.parallel.read, READS), calls(config.parallel.decode, thread_budget(config, world)))


def options(config: DataConfig, world: World) -> tf.data.Options:
    """Threads of the whole pipeline, and whether tf.data may tune it."""
    serial = config.num_parallel_readers == 1
    result = tf.data.Options()
    threads = 1 if serial else thread_budget(config, world)
    result.threading.private_threadpool_size = result.autotune.cpu_budget = threads
    if serial:
        # Otherwise tf.data makes a serial pipeline parallel by itself.
        result.autotune.enabled = False
        result.experimental_optimization.map_parallelization = False
    if config.memory_budget is not None:
        result.autotune.ram_budget = config.memory_budget
    if config.prefetch_buffer_size == 0:
        result.experimental_optimization.inject_prefetch = False
    return result


def thread_budget(config: DataConfig, world: World) -> int:
    """Threads of this rank's pipeline that may keep a CPU busy at the same time."""
    if config.threads is not None:
        return config.threads
    return max(1, round(config.cpu_fraction * (world.threads or len(os.sched_getaffinity(0)))))
