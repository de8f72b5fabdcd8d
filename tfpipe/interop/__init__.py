"""Batches for other frameworks."""

__all__ = ["ahead", "jax", "torch", "triton"]
