"""The library in C, where the config allows it."""

from tfpipe.config import DataConfig
from tfpipe.native import Native, native


def native_library(config: DataConfig) -> Native | None:
    """Returns the library in C; None if it cannot be used, or `data.decoder` asks for TensorFlow's ops."""
    return native() if config.native else None


def ops_library(config: DataConfig) -> Native | None:
    """Returns the library in C for ops on whole batches; None if it cannot be used, or `data.decoder` is "graph"."""
    return None if config.decoder == "graph" else native()
