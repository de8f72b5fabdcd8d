"""tfpipe: feeds labelled images to Keras, PyTorch and JAX, from a laptop to many MPI ranks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfpipe.config import Config, load_config, make_config
    from tfpipe.data.live.figures import serve_metrics
    from tfpipe.data.load import load
    from tfpipe.data.loader import Loader
    from tfpipe.data.order.stream import Cursor, Stream
    from tfpipe.data.pipeline import build_dataset
    from tfpipe.data.sources.source import Source
    from tfpipe.distributed import World
    from tfpipe.errors import ConfigError, TfpipeError

__version__ = "0.2.0.dev0"
__all__ = [
    "Config",
    "ConfigError",
    "Cursor",
    "Loader",
    "Source",
    "Stream",
    "TfpipeError",
    "World",
    "build_dataset",
    "load",
    "load_config",
    "make_config",
    "serve_metrics",
]

_HOMES = {
    "Config": "tfpipe.config",
    "ConfigError": "tfpipe.errors",
    "Cursor": "tfpipe.data.order.stream",
    "Loader": "tfpipe.data.loader",
    "Source": "tfpipe.data.sources.source",
    "Stream": "tfpipe.data.order.stream",
    "TfpipeError": "tfpipe.errors",
    "World": "tfpipe.distributed",
    "build_dataset": "tfpipe.data.pipeline",
    "load": "tfpipe.data.load",
    "load_config": "tfpipe.config",
    "make_config": "tfpipe.config",
    "serve_metrics": "tfpipe.data.live.figures",
}
_MODULES = {"jax", "keras", "lightning", "stages", "torch"}
_OF_TENSORFLOW = {"Loader", "build_dataset", "load", "serve_metrics"}  # the modules look for it themselves


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import tfpipe` is light and starts no TensorFlow."""
    if name in _OF_TENSORFLOW:
        import_module("tfpipe.requirements").check_tensorflow()
    if name not in _MODULES and name not in _HOMES:
        raise AttributeError(f"module 'tfpipe' has no attribute '{name}'")
    with import_module("tfpipe.util.process").without_collections():
        if name in _MODULES:
            return import_module(f"tfpipe.{name}")
        return getattr(import_module(_HOMES[name]), name)
