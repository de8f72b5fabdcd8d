"""From a trace of a run to a verdict."""

__all__ = ["batches", "chrome", "lanes", "plot", "runs", "samples", "stages", "text", "trace", "verdict"]
