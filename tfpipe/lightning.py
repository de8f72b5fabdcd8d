"""A callback for Lightning's Trainer: the public name of tfpipe.interop.lightning."""

from tfpipe.interop.lightning import KeepState

__all__ = ["KeepState"]
