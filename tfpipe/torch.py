"""Batches for PyTorch: the public name of tfpipe.interop.torch."""

from tfpipe.interop.torch import Loader, iterable

__all__ = ["Loader", "iterable"]
