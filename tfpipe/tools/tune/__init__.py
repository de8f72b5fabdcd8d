"""Finds the settings with which the pipeline is fastest, without changing a pixel or the order."""
