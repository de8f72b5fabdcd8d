"""A callback for Keras' fit: the public name of tfpipe.interop.keras."""

from tfpipe.interop.keras import Commit

__all__ = ["Commit"]
