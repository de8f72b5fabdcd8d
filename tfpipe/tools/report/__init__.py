"""From a trace of a run to a verdict."""

__all__ = ["plot", "runs", "text", "trace", "verdict"]
