"""Batches for other frameworks."""

__all__ = ["torch", "triton"]
