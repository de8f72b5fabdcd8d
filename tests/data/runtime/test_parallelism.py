"""Numbers of parallel calls, as the config sets them."""

import json
from typing import Any

import pytest
import tensorflow as tf

from tfpipe.config import DataConfig, make_config
from tfpipe.data.runtime.parallelism import READS, Calls, calls_at_once, options
from tfpipe.distributed import World
from tfpipe.util import tensorflow_api


@pytest.mark.parametrize(
    ("threads", "data", "expected"),
    [
        # A quarter more decodes than threads, at least one more.
        (1, {}, Calls(64, 2)),
        (2, {}, Calls(64, 3)),
        (7, {}, Calls(64, 8)),
        (32, {}, Calls(64, 40)),
        (32, {"threads": 0.5}, Calls(64, 20)),
        (32, {"threads": 8}, Calls(64, 10)),
        (2, {"parallel": {"read": 5, "decode": 9}}, Calls(5, 9)),
        (2, {"num_parallel_readers": 4}, Calls(4, 4)),
        (2, {"num_parallel_readers": 4, "parallel": {"decode": "auto"}}, Calls(4, 3)),
        (2, {"num_parallel_readers": 1}, Calls(None, None)),
        (2, {"parallel": {"read": "autotune", "decode": "autotune"}}, Calls(tf.data.AUTOTUNE, tf.data.AUTOTUNE)),
    ],
)
def test_calls_at_once(threads: int, data: dict[str, Any], expected: Calls) -> None:
    config = DataConfig.model_validate_json(json.dumps({"train_filelist": "/train.txt", **data}))
    assert calls_at_once(config, World(threads=threads)) == expected


def test_batches_do_not_wait_for_a_few_huge_images() -> None:
    config = DataConfig.model_validate_json(json.dumps({"train_filelist": "/train.txt"}))
    assert calls_at_once(config, World(threads=8), uneven=True) == Calls(64, 24)
    chosen = config.model_copy(update={"parallel": config.parallel.model_copy(update={"decode": 9})})
    assert calls_at_once(chosen, World(threads=8), uneven=True).decode == 9


@pytest.mark.parametrize(
    ("data", "threads", "pool"),
    [
        ({}, 4, 4 + READS),
        ({"parallel": {"read": 7}}, 4, 4 + 7),
        ({"parallel": {"read": "autotune"}}, 4, 4 + READS),
        ({"num_parallel_readers": 1}, 4, 1),
    ],
)
def test_where_reads_hold_the_pools_threads_it_has_one_more_for_each(
    data: dict[str, Any], threads: int, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before TensorFlow 2.18; else slow storage leaves the decoders no thread. What computes at once stays."""
    config, world = make_config({"data": {"train_filelist": "x", **data}}).data, World(threads=threads)
    assert options(config, world).threading.private_threadpool_size == (1 if pool == 1 else threads)
    monkeypatch.setattr(tensorflow_api, "unbounded_threads", lambda _=True: {})
    result = options(config, world)
    assert (result.threading.private_threadpool_size, result.autotune.cpu_budget) == (pool, 1 if pool == 1 else threads)
