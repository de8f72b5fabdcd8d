"""Watching a run: where the time of the steps goes, stalls, stragglers, metrics."""
