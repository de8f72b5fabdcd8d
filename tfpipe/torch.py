"""Batches for PyTorch: the public name of tfpipe.interop.torch."""

from tfpipe.interop.torch import iterable

__all__ = ["iterable"]
