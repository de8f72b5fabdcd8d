"""Stalls that do not end: when that is taken for certain, and what is then said."""

from collections.abc import Callable

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.awaited import next_paths, unanswered
from tfpipe.data.catalog import Catalog
from tfpipe.data.stream import Stream
from tfpipe.distributed import World
from tfpipe.training.stalls import Limit, Stall

NAMED = 3
SET_WITH = "data.stall_timeout_s is how long to wait"


def stall_limit(
    config: DataConfig, world: World, catalog: Catalog, stream: Stream, reached: Callable[[], tf.Tensor | None]
) -> Limit | None:
    """As `data.stall_timeout_s` says.

    Args:
        config: of the data.
        world: which rank this is.
        catalog: of the split.
        stream: what the batches set out from.
        reached: gives the positions of the last batch that came, int64 [batch, 2]; None if none did.
    """
    if config.stall_timeout_s is None:
        return None

    def reason(stall: Stall) -> str:
        if stall.part != "input":
            return f"this rank's own step does not end, or another rank has stopped; {SET_WITH}"
        positions = reached()
        last = None if positions is None else positions[-1].numpy()
        paths = next_paths(catalog, config, world, stream, last)
        return f"{describe(paths, unanswered(paths))}; {SET_WITH}"

    return Limit(config.stall_timeout_s, reason)


def describe(paths: list[str], silent: list[str]) -> str:
    """Of the files that are waited for, those that do not answer, or else the next ones."""
    if silent:
        more = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
        return f"of the next {len(paths)} files {len(silent)} cannot be read: {'; '.join(silent[:NAMED])}{more}"
    return f"the next files can be read by now, e.g. {', '.join(paths[:NAMED])}"
