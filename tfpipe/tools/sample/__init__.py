"""A small data set in ImageNet's layout, drawn by code."""

__all__ = ["pictures", "plan", "sample"]
