"""How fast the input pipeline is, against the machine's limit, and what bounds it."""

from tfpipe.tools.bench.bench import Plan, Report, run

__all__ = ["Plan", "Report", "run"]
