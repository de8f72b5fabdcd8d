"""Numbers of parallel calls, as the config sets them."""

import json
from typing import Any

import pytest
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.runtime.parallelism import Calls, calls_at_once
from tfpipe.distributed import World


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
