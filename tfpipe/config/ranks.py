"""The settings of a config that all ranks of a launch must share."""

import json
from typing import Any

from tfpipe.config.data import DataConfig
from tfpipe.config.model import Config
from tfpipe.util.json_text import leaves

# Keys that each rank may have for itself: neither crops nor their order depend on them.
OWN = (
    # The CPUs, the memory and the disks of its host.
    "data.threads", "data.cpu_fraction", "data.parallel", "data.num_parallel_readers", "data.prefetch_buffer_size",
    "data.memory_budget", "data.cache",
    # How its host reaches the data.
    "data.remote", "data.service",
)  # fmt: skip


def shared_settings(config: Config | DataConfig) -> dict[str, Any]:
    """Returns the settings that all ranks must share, by key, e.g. "data.seed".

    Each path is "(a path)", since a node's copy of the data may be in a folder of its own: the contract of the data
    compares the content, and rank 0's weights are those of all.
    """
    sections = {"data": config.model_dump()} if isinstance(config, DataConfig) else config.model_dump()
    return leaves(json.loads(json.dumps(sections, default=lambda _: "(a path)")), OWN)
