"""Batches for JAX: the public name of tfpipe.interop.jax."""

from tfpipe.interop.jax import Loader

__all__ = ["Loader"]
