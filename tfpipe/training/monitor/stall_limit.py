"""The limit of a stall: after how long it ends the run, and the message that names the files waited for."""

from collections.abc import Callable

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.failures.stalled import describe, pending_files, unreadable_within
from tfpipe.data.order.stream import Stream
from tfpipe.distributed import World
from tfpipe.training.monitor.stalls import Stall, StallLimit

SET_WITH = "data.stall_timeout_s is how long to wait"


def stall_limit(
    config: DataConfig, world: World, catalog: Catalog, stream: Stream, reached: Callable[[], tf.Tensor | None]
) -> StallLimit | None:
    """Returns the limit of `data.stall_timeout_s`; None if that is null.

    `stream` is where the batches started; `reached` returns the positions of the last batch received, int64 [batch, 2],
    or None before the first.
    """
    if config.stall_timeout_s is None:
        return None

    def reason(stall: Stall) -> str:
        if stall.part != "input":
            return f"this rank's own step does not end, or another rank has stopped; {SET_WITH}"
        positions = reached()
        last = None if positions is None else positions[-1].numpy()
        paths = pending_files(catalog, config, world, stream, last)
        return f"{describe(paths, unreadable_within(paths))}; {SET_WITH}"

    return StallLimit(config.stall_timeout_s, reason)
