"""Batches for other frameworks."""
