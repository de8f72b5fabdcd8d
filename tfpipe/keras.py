"""Batches for Keras' fit: the public name of tfpipe.interop.keras."""

from tfpipe.interop.keras import Commit, batches

__all__ = ["Commit", "batches"]
