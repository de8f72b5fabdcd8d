"""A small data set in ImageNet's layout, drawn by code."""
