"""Commands that look and measure."""

__all__ = ["bench", "check", "report", "sample", "view"]
