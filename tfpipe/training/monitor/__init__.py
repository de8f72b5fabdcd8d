"""Watching a run: where the time of the steps goes, stalls, stragglers, metrics."""

__all__ = ["accounting", "meter", "metrics", "profiling", "record", "stall_limit", "stalls", "stragglers", "usage"]
