"""Saving a run's state, and resuming from it with any number of ranks."""
