"""The limit of a stall: after how long it ends the run, and the message that names the files waited for."""

from tfpipe.config import DataConfig
from tfpipe.data.loader import Loader
from tfpipe.training.monitor.stalls import Stall, StallLimit

SET_WITH = "data.stall_timeout_s is how long to wait"


def stall_limit(config: DataConfig, loader: Loader) -> StallLimit | None:
    """Returns the limit of `data.stall_timeout_s` for steps on the batches of `loader`; None if that is null."""
    if config.stall_timeout_s is None:
        return None

    def reason(stall: Stall) -> str:
        if stall.part != "input":
            return f"this rank's own step does not end, or another rank has stopped; {SET_WITH}"
        return f"{loader.waits_for()}; {SET_WITH}"

    return StallLimit(config.stall_timeout_s, reason)
